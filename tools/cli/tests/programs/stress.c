/* Threads execute call sites while these are being patched: the first calls trap, later ones do not,
 * and no call may change anything but its result register.
 *
 *   stress LIBRARY */
#include "ring.h"
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

struct state {
    unsigned char vectors[32][16];
    int wide;
    int padding[3];
    unsigned char after[32][32];
};

typedef long (*site)(int fd, struct state *state);

enum { THREADS = 4, ROUNDS = 3000 };

static struct ring ring;
static site *sites;
static const int *vectors;
static int wide;
static pthread_barrier_t start;

static void fill(struct state *state, unsigned char mark) {
    for (int i = 0; i < 32; i++)
        for (int j = 0; j < 16; j++)
            state->vectors[i][j] = mark + i * 7 + j;
    memset(state->after, 0, sizeof state->after);
}

static void *run(void *argument) {
    struct state state = {.wide = wide};
    unsigned char mark = (uintptr_t)argument;
    pthread_barrier_wait(&start);
    for (int round = 0; round < ROUNDS; round++) {
        for (site *each = sites; *each; each++) {
            fill(&state, mark++);
            /* Every fourth call fails, so that results differ. */
            long expected = mark % 4 ? 0 : -EBADF, result = (*each)(mark % 4 ? ring.fd : -1, &state);
            if (result != expected) {
                printf("site %ld: %ld instead of %ld\n", (long)(each - sites), result, expected);
                exit(1);
            }
            for (int i = 0; i < *vectors; i++) {
                if (memcmp(state.after[i], state.vectors[i], 16) ||
                    (state.wide && memcmp(state.after[i] + 16, state.vectors[i], 16))) {
                    printf("site %ld: vector register %d changed\n", (long)(each - sites), i);
                    exit(1);
                }
            }
        }
    }
    return 0;
}

/* True if the kernel reports branch protection (`bt`) for the mapping of the code. */
static int is_guarded(site code) {
    char line[512];
    int is_here = 0, is = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            is_here = start <= (uintptr_t)code && (uintptr_t)code < end;
        else if (is_here && !strncmp(line, "VmFlags:", 8))
            is = strstr(line, " bt") != 0;
    }
    fclose(maps);
    return is;
}

/* Protects the pages of the sites, and other code. */
static void protect_sites(int guarded) {
    uintptr_t first = (uintptr_t)*sites, last = first, page = sysconf(_SC_PAGESIZE);
    for (site *each = sites; *each; each++) {
        first = first < (uintptr_t)*each ? first : (uintptr_t)*each;
        last = last > (uintptr_t)*each ? last : (uintptr_t)*each;
    }
    first &= -page;
    CHECK(mprotect((void *)first, last + 1024 - first, PROT_READ | PROT_EXEC | guarded) == 0);
    CHECK(is_guarded(*sites) == !!guarded);
}

static void nothing(int signal) { (void)signal; }

int main(int count, char **arguments) {
    CHECK(count == 2 && ring_open(&ring, 8, 0) == 0);
    void *library = dlopen(arguments[1], RTLD_NOW);
    CHECK(library && (sites = dlsym(library, "sites")));
    int (*vectors_are_wide)(void) = dlsym(library, "vectors_are_wide"), (*guard)(void) = dlsym(library, "guard");
    int (*others)(void) = dlsym(library, "others");
    CHECK((vectors = dlsym(library, "vectors")) && vectors_are_wide && guard && others);
    wide = vectors_are_wide();
    int guarded = guard();
    protect_sites(guarded);
    CHECK(pthread_barrier_init(&start, 0, THREADS) == 0);
    /* Signals arrive in between all the time. */
    struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGPROF, &action, 0) == 0);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGPROF};
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    struct itimerspec often = {{0, 100000}, {0, 100000}};
    CHECK(timer_settime(timer, 0, &often, 0) == 0);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], 0, run, (void *)(i * 50)) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], 0) == 0);
    CHECK(is_guarded(*sites) == !!guarded);
    /* The code that ends the library does not support this protection. */
    protect_sites(0);
    CHECK(others());
    printf("all as it was\n");
    return 0;
}
