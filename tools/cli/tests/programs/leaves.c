/* Children of vfork, each of which executes a program with a large environment: they leak no memory in this process. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define ENTRIES 12000

static char *environment[ENTRIES + 1];

static long pages(void) {
    long pages = 0;
    FILE *memory = fopen("/proc/self/statm", "r");
    if (!memory || fscanf(memory, "%ld", &pages) != 1)
        return -1;
    fclose(memory);
    return pages;
}

static void children(int count, char *program) {
    char *call[] = {program, "child", 0};
    for (volatile int i = 0; i < count; i++) {
        pid_t child = vfork();
        if (child == 0) {
            /* The first execution fails, the second does not. */
            execve("/nowhere", call, environment);
            execvpe(program, call, environment);
            _exit(1);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status)
            printf("a child: %x\n", status);
    }
}

int main(int count, char **arguments) {
    if (count > 1)
        return 0;
    for (int i = 0; i < ENTRIES; i++)
        environment[i] = "A=B";
    children(3, arguments[0]);
    long before = pages();
    children(15, arguments[0]);
    printf("grown by a MiB: %d\n", pages() - before > 255);
    return 0;
}
