/* Two children, the first of which may begin a PID namespace: while it lives, the second can be created. */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    pid_t first = fork();
    if (first == 0) {
        pause();
        _exit(1);
    }
    pid_t second = fork();
    if (second == 0)
        _exit(7);
    int status = 0;
    printf("children: %d %d, ", first > 0, second > 0);
    printf("exit %d\n", second > 0 && waitpid(second, &status, 0) == second ? WEXITSTATUS(status) : -1);
    if (first > 0) {
        kill(first, SIGKILL);
        waitpid(first, 0, 0);
    }
    return 0;
}
