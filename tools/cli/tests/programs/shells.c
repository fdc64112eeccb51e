/* Runs a command by shells, which inherit no environment: by `system` and by `popen`. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static void finish(const char *what, int status) {
    printf("%s: %s %d\n", what, WIFEXITED(status) ? "exit" : "signal",
           WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    fflush(stdout);
}

/* An argument of the maximum length, with words that no shell needs. */
static void longest(const char *command) {
    size_t length = 128 << 10;
    char *longest = malloc(length);
    memcpy(longest, command, strlen(command));
    memset(longest + strlen(command), ' ', length - strlen(command) - 1);
    longest[length - 1] = 0;
    finish("system with the longest command", system(longest));
}

int main(int count, char **arguments) {
    if (count != 2 || clearenv())
        return 1;
    finish("system", system(arguments[1]));
    FILE *pipe = popen(arguments[1], "r");
    for (int byte; (byte = fgetc(pipe)) != EOF;) putchar(byte);
    finish("popen", pclose(pipe));
    finish("system, where quotes are needed", system("echo \"it's\" '$0' is $0; exit 5"));
    longest("exit 6");
    return 0;
}
