/* Overwrites the memory of its environment, like programs that set their title (PostgreSQL, nginx, sshd), and uses
 * a ring. */
#include "ring.h"

extern char **environ;

int main(void) {
    int count = 0;
    while (environ[count])
        count++;
    char **copy = malloc((count + 1) * sizeof *copy);
    for (int i = 0; i < count; i++)
        copy[i] = strdup(environ[i]);
    copy[count] = 0;
    char *start = environ[0], *end = environ[count - 1] + strlen(environ[count - 1]);
    environ = copy;
    memset(start, 'x', end - start);
    struct ring ring;
    CHECK(ring_open(&ring, 8, 0) == 0);
    CHECK(ring_nop(&ring, 1) == 0);
    return 0;
}
