/* Exits with a bit for each standard stream that is open. */
#include <fcntl.h>

int main(void) {
    int open = 0;
    for (int stream = 0; stream < 3; stream++)
        open |= (fcntl(stream, F_GETFD) >= 0) << stream;
    return open;
}
