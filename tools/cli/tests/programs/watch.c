/* Runs a program as a debugger does, and counts the signals of one kind that it would stop at.
 *
 *   watch SIGNAL PROGRAM [ARGUMENTS] */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count < 3)
        return 2;
    int watched = atoi(arguments[1]), seen = 0, status;
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execvp(arguments[2], arguments + 2);
        _exit(127);
    }
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        int signal = WSTOPSIG(status);
        seen += signal == watched;
        ptrace(PTRACE_CONT, child, 0, signal == SIGTRAP ? 0 : signal);
    }
    printf("%d times\n", seen);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
