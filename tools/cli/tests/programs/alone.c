/* The state of a program at its start: no child, no descriptor and no signal that it has not requested. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    int status;
    pid_t child = waitpid(-1, &status, __WALL);
    printf("children: %s\n", child < 0 && errno == ECHILD ? "none" : "some");
    DIR *open = opendir("/proc/self/fd");
    struct dirent *entry;
    printf("descriptors:");
    while ((entry = readdir(open)))
        if (*entry->d_name != '.' && atoi(entry->d_name) != dirfd(open) && atoi(entry->d_name) > 2)
            printf(" %s", entry->d_name);
    printf("\nblocked:");
    sigset_t mask, pending;
    sigprocmask(SIG_BLOCK, 0, &mask);
    sigpending(&pending);
    for (int signal = 1; signal < 32; signal++) {
        struct sigaction action;
        if (sigismember(&mask, signal) == 1 || sigismember(&pending, signal) == 1)
            printf(" %d", signal);
        if (sigaction(signal, 0, &action) == 0 && action.sa_handler != SIG_DFL)
            printf(" %d:%s", signal, action.sa_handler == SIG_IGN ? "ignored" : "handled");
    }
    printf("\n%d arguments:", count);
    for (int i = 0; i < count; i++)
        printf(" %s", arguments[i]);
    FILE *name = fopen("/proc/self/comm", "r");
    char comm[32] = "";
    printf("\nname: %s", fgets(comm, sizeof comm, name));
    const char *executed = strrchr((char *)getauxval(AT_EXECFN), '/');
    printf("executed: %s\n", executed ? executed : "");
    const char *shell = getenv("THE_SHELLS");
    printf("parent: %s\n", shell && atoi(shell) != getppid() ? "another" : "the shell");
    return 0;
}
