/* Children that close or replace standard error do not keep its old file: the reader of the other end waits for its end. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "ring.h"

static struct stat wanted;

/* Returns the number of descriptors of the old standard error. */
static int held(void) {
    DIR *open = opendir("/proc/self/fd");
    CHECK(open != 0);
    struct dirent *entry;
    int count = 0;
    while ((entry = readdir(open))) {
        struct stat found;
        if (*entry->d_name != '.' && fstat(atoi(entry->d_name), &found) == 0)
            count += found.st_dev == wanted.st_dev && found.st_ino == wanted.st_ino;
    }
    closedir(open);
    return count;
}

static void replace(void) {
    int null = open("/dev/null", O_RDWR);
    CHECK(null >= 0 && dup2(null, 2) == 2);
}

static void closes(void) {
    CHECK(close(2) == 0);
}

static void is_a_daemon(void) {
    /* In a child of a child, whose standard streams the C library replaces; it has the caller's output. */
    int out = dup(1);
    CHECK(out >= 0 && daemon(1, 0) == 0 && dup2(out, 1) == 1);
}

static void first_has_a_ring(void) {
    struct ring own;
    CHECK(ring_open(&own, 4, 0) == 0 && ring_nop(&own, 1) == 0);
    CHECK(close(2) == 0);
}

static void child(const char *how, void (*body)(void)) {
    int ends[2];
    char end;
    CHECK(pipe(ends) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        body();
        close(ends[0]);
        if (body != first_has_a_ring)
            printf("%s: %d\n", how, held());
        exit(0);
    }
    close(ends[1]);
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    /* No process has the other end any more: the last child has ended. */
    CHECK(read(ends[0], &end, 1) == 0);
    close(ends[0]);
}

int main(void) {
    CHECK(fstat(2, &wanted) == 0);
    child("replaced", replace);
    child("closed", closes);
    child("a daemon", is_a_daemon);
    pid_t ended = vfork();
    if (ended == 0) {
        close(2);
        _exit(0);
    }
    CHECK(ended > 0 && waitpid(ended, 0, 0) == ended);
    child("with a ring", first_has_a_ring);
    CHECK(close(2) == 0);
    return 0;
}
