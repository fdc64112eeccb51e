/* A static program without a path is executed by a descriptor, repeatedly: no descriptor of this process is leaked. */
#include "ring.h"
#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

static int descriptors(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

int main(int count, char **words) {
    CHECK(count == 2);
    int memory = memfd_create("program", MFD_CLOEXEC), file = open(words[1], O_RDONLY);
    CHECK(memory >= 0 && file >= 0);
    char part[65536];
    for (ssize_t length; (length = read(file, part, sizeof part)) > 0;)
        CHECK(write(memory, part, length) == length);
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    int before = descriptors();
    for (int time = 0; time < 3; time++) {
        char *arguments[] = {"program", 0}, *none[] = {0};
        pid_t child;
        int status;
        CHECK(posix_spawn(&child, path, 0, 0, arguments, none) == 0 && waitpid(child, &status, 0) == child);
        printf("status %x\n", status);
    }
    printf("more descriptors: %d\n", descriptors() - before);
    return 0;
}
