/* Spawns itself, and that process spawns a program, with all descriptors closed except the first three. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int spawn(char **call) {
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status;
    if (posix_spawn_file_actions_init(&actions) || posix_spawn_file_actions_adddup2(&actions, 5, 0) ||
        posix_spawn_file_actions_addclosefrom_np(&actions, 3) ||
        posix_spawn(&child, call[0], &actions, 0, call, environ) || waitpid(child, &status, 0) != child)
        return 90;
    posix_spawn_file_actions_destroy(&actions);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int count, char **arguments) {
    /* The child has none of these descriptors open: file actions have closed them, and copied descriptor 5 to standard input. */
    int own[] = {3, 5, 99, 101, 200}, is_child = count > 2;
    for (int i = 0; i < 5; i++) {
        if (is_child && fcntl(own[i], F_GETFD) >= 0)
            return 80 + i;
        if (dup2(1, own[i]) != own[i])
            return 91;
    }
    char *child[] = {arguments[0], arguments[1], "child", 0}, *program[] = {arguments[1], 0};
    int code = spawn(program);
    if (code || is_child)
        return code;
    code = spawn(child);
    /* Open descriptors may be above the new limit. */
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 64;
    return code || setrlimit(RLIMIT_NOFILE, &limit) ? code : spawn(program);
}
