/* Executes itself as often as its argument says, then prints the number of filters. With a second
 * argument its file is removed at the first time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments) {
    int left = count > 1 ? atoi(arguments[1]) : 0;
    char line[256], number[16];
    if (left > 0) {
        snprintf(number, sizeof number, "%d", left - 1);
        if (count > 2)
            unlink(arguments[0]);
        execv("/proc/self/exe", (char *[]){arguments[0], number, arguments[2], 0});
        return 1;
    }
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "Seccomp_filters:", 16))
            printf("%d\n", atoi(line + 16));
    return 0;
}
