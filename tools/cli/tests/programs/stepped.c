/* A process repeats a ring call. Its parent stops it at each instruction of the call, and sends signals there: one, two together, or two, one after the other.
 * Their handlers run on the process's stack or on an alternate one. Each handler must run once, during the call or right after it, and never while the thread
 * is inside the engine, whose locks it may hold. The call must return its result, and must not change any other register. */
#include "ring.h"
#include <elf.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <ucontext.h>

enum { CALLS_BEFORE = 20, MOST = 1 << 20, FIRST_OF_HANDLER = 40 };

static struct ring ring;
/* The signal that is sent first. */
static int first;

/* The state that the two processes share. */
static struct shared {
    volatile int phase, handled[2], is_inside;
    volatile unsigned long handler, bad;
    /* The number of the first word of `wanted` that a call has changed, from 1; 0 for none. */
    volatile int changed;
} *shared;

#if defined(__x86_64__)
#include "arch/stepped-x86_64.h"
#else
#include "arch/stepped-aarch64.h"
#endif

/* Makes the call, and compares the registers after it with those before. */
static long enter_and_compare(int fd) {
    unsigned long *want = wanted.general, *is = found.general;
    long taken = enter_with(fd);
    want[FLAGS] &= ARITHMETIC, is[FLAGS] &= ARITHMETIC;
    for (unsigned i = 0; i < sizeof wanted / sizeof *want; i++)
        if (want[i] != is[i] && !shared->changed)
            shared->changed = i + 1;
    return taken;
}

extern char __executable_start[], etext[];

/* True if a handler may interrupt the thread here, although it was inside the engine when the signal was sent: in the program, or at the
 * beginning of the handler of another signal. */
static int may_be_interrupted(unsigned long at) {
    return (at >= (unsigned long)__executable_start && at < (unsigned long)etext) || at == shared->handler;
}

static void handle(int signal, siginfo_t *info, void *context) {
    (void)info;
    unsigned long at = INTERRUPTED((ucontext_t *)context);
    if (shared->is_inside && !may_be_interrupted(at))
        shared->bad = at;
    shared->handled[signal == SIGUSR2]++;
    /* This call would wait for ever if the thread held a lock of the engine. */
    CHECK(ring_enter(ring.fd, 0, 0, IORING_ENTER_GETEVENTS) == 0);
}

static void run(int flags) {
    stack_t alternate = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = flags | SA_SIGINFO};
    for (unsigned i = 0; i < sizeof wanted / sizeof(long); i++)
        ((unsigned long *)&wanted)[i] = 0x0123456789abcdeful * (i + 3);
    CHECK(ring_open(&ring, 8, 0) == 0 && sigaltstack(&alternate, 0) == 0);
    CHECK(sigaction(first, &action, 0) == 0 && sigaction(SIGUSR2, &action, 0) == 0);
    CHECK(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
    for (int i = 0;; i++) {
        struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_NOP, i);
        entry->flags = 0;
        if (i >= CALLS_BEFORE) {
            shared->phase = 1;
            STOP();
        }
        long taken = enter_and_compare(ring.fd);
        if (i >= CALLS_BEFORE) {
            shared->phase = 2;
            STOP();
        }
        CHECK(taken == 1 && ring_peek(&ring) && ring_peek(&ring)->user_data == (uint64_t)i);
        ring_seen(&ring);
    }
}

static pid_t child;
static struct user_regs_struct registers;

static struct iovec place_of_registers = {&registers, sizeof registers};

static void read_registers(void) { CHECK(ptrace(PTRACE_GETREGSET, child, NT_PRSTATUS, &place_of_registers) == 0); }

static void write_registers(void) { CHECK(ptrace(PTRACE_SETREGSET, child, NT_PRSTATUS, &place_of_registers) == 0); }

/* Continues the child with a signal, until it stops; returns the signal of the stop. */
static int go_on(int how, int signal) {
    int status;
    CHECK(ptrace(how, child, 0, signal) == 0 && waitpid(child, &status, 0) == child);
    if (!WIFSTOPPED(status)) {
        printf("the process has ended: %x\n", status);
        fflush(stdout);
        _exit(98);
    }
    read_registers();
    if (WSTOPSIG(status) == SIGTRAP)
        pass_stop(child, &registers);
    return WSTOPSIG(status);
}

/* Lets the child execute an instruction, or several that must not be interrupted; a signal comes before them. Returns the signal of the stop. */
static int step(int signal) {
    unsigned long ends[17];
    long words[17];
    int count = signal ? 0 : as_one(child, registers.INSTRUCTION, ends);
    if (count == 0)
        return go_on(PTRACE_SINGLESTEP, signal);
    for (int i = 0; i < count; i++) {
        words[i] = ptrace(PTRACE_PEEKTEXT, child, ends[i], 0);
        CHECK(ptrace(PTRACE_POKETEXT, child, ends[i], WITH_BREAKPOINT(words[i])) == 0);
    }
    int stop = go_on(PTRACE_CONT, 0);
    while (count--)
        CHECK(ptrace(PTRACE_POKETEXT, child, ends[count], words[count]) == 0);
    return stop;
}

/* Continues the child up to the next SIGTRAP, and delivers the signals that stop it before. */
static void go_on_to_trap(int signal) {
    while ((signal = go_on(PTRACE_CONT, signal)) != SIGTRAP)
        ;
}

static unsigned long *places, first_stack;
static long count;

static int is_off_stack(void) { return labs((long)(registers.STACK - first_stack)) > 1 << 16; }

/* Lets the child run to an instruction of the next call: up to a breakpoint at the last instruction before it that a call executes only once, then step by
 * step. Returns true if the child has arrived there. */
static int come_to(long point) {
    long from = point;
    for (; from > 0; from--) {
        int times = 0;
        for (long i = 0; i < count && times < 2; i++)
            times += places[i] == places[from];
        if (times == 1)
            break;
    }
    if (from > 0) {
        long word = ptrace(PTRACE_PEEKTEXT, child, places[from], 0);
        CHECK(ptrace(PTRACE_POKETEXT, child, places[from], WITH_BREAKPOINT(word)) == 0);
        go_on_to_trap(0);
        CHECK(ptrace(PTRACE_POKETEXT, child, places[from], word) == 0);
        if (registers.INSTRUCTION != places[from] + BREAKPOINT)
            return 0;
        registers.INSTRUCTION -= BREAKPOINT;
        write_registers();
    }
    for (; from < point; from++)
        if (step(0) != SIGTRAP || shared->phase != 1)
            return 0;
    return 1;
}

/* Lets the child make a call, and sends signals at an instruction of it; the second signal `later` instructions after the first, or, if `later` is
 * negative, together with it. Returns true if the child has come to the instruction. */
static int send(long point, int signals, int later) {
    shared->handled[0] = shared->handled[1] = 0;
    shared->is_inside = 0;
    int came = come_to(point);
    if (came) {
        shared->is_inside = is_off_stack();
        if (later < 0) {
            if (signals == 2)
                CHECK(syscall(SYS_tgkill, child, child, SIGUSR2) == 0);
            go_on_to_trap(first);
        } else {
            step(first);
            shared->handler = registers.INSTRUCTION;
            int signal = SIGTRAP;
            for (int i = 0; i < later && signal == SIGTRAP && shared->phase == 1; i++)
                signal = step(0);
            /* If the child has stopped for another signal, that one is delivered, too. */
            CHECK(syscall(SYS_tgkill, child, child, SIGUSR2) == 0);
            if (!(signal == SIGTRAP && shared->phase == 2))
                go_on_to_trap(signal == SIGTRAP ? 0 : signal);
        }
    }
    while (shared->phase != 2)
        go_on_to_trap(0);
    /* A signal that is sent at the last instructions of a call arrives in the next call. */
    for (int i = 0; came && i < 2 && (!shared->handled[0] || shared->handled[1] != (signals == 2)); i++)
        go_on_to_trap(0);
    if (shared->bad || shared->changed || (came && (shared->handled[0] != 1 || shared->handled[1] != (signals == 2)))) {
        printf("at %ld of %ld, %#lx, %d signals, %d later: handlers ran %d and %d times, inside %d, wrong at %#lx, changed %d\n", point, count,
               places[point], signals, later, shared->handled[0], shared->handled[1], shared->is_inside, shared->bad, shared->changed);
        fflush(stdout);
        _exit(97);
    }
    /* Continues to the beginning of the next call. */
    while (shared->phase != 1)
        go_on_to_trap(0);
    return came;
}

static void step_through(const char *name, int signal, int flags) {
    first = signal;
    fflush(stdout);
    memset(shared, 0, sizeof *shared);
    child = fork();
    CHECK(child >= 0);
    if (!child)
        run(flags);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    CHECK(ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_EXITKILL) == 0);
    read_registers();
    first_stack = registers.STACK;
    for (count = 0; shared->phase == 1 && count < MOST; count++) {
        places[count] = registers.INSTRUCTION;
        step(0);
    }
    /* The last recorded instructions are the program's own, between the end of the call and the change of the phase. */
    while (shared->phase != 1)
        go_on_to_trap(0);
    long tried = 0, came = 0, most = atol(getenv("STEPPED_POINTS") ? getenv("STEPPED_POINTS") : "200");
    long stride = count / most + 1, near = atol(getenv("STEPPED_NEAR") ? getenv("STEPPED_NEAR") : "1");
    for (long point = 0; point < count - 1; point++) {
        int is_near_end = point < 150 || point > count - 250;
        if (point % (is_near_end ? near : stride))
            continue;
        for (int signals = 1; signals <= 2; signals++)
            tried++, came += send(point, signals, -1);
        if (point % (is_near_end ? near * 15 : stride * 40) == 0)
            for (int later = 0; later < FIRST_OF_HANDLER; later++)
                tried++, came += send(point, 2, later);
    }
    fprintf(stderr, "%s: %ld instructions, %ld tries, %ld came by\n", name, count, tried, came);
    printf("%s: %s\n", name, came > tried / 2 ? "stepped through" : "most instructions were missed");
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
}

int main(void) {
    places = calloc(MOST, sizeof *places);
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(places && shared != MAP_FAILED);
    alarm(600);
    step_through("on the stack", SIGUSR1, 0);
    step_through("on an alternate one", SIGUSR1, SA_ONSTACK);
    step_through("of a fault that is sent, on an alternate one", SIGSEGV, SA_ONSTACK);
    return 0;
}
