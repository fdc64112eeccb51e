/* A process repeats a ring call. Its parent stops it at each instruction of the call, and sends signals there: one, two together, or two, one after the other.
 * Their handlers run on the process's stack or on an alternate one. Each handler must run once, during the call or right after it, and never while the thread
 * is inside the engine, whose locks it may hold. The call must return its result, and must not change any other register. */
#include "ring.h"
#include <sys/ptrace.h>
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

/* The values of the registers before the call and after it: r8, r9, r12 to r15, rbx, rbp, rdi, rsi, rdx, r10, rsp, the flags, xmm0 to xmm15. */
enum { GENERAL = 14, FLAGS = 13, VECTORS = 16, ARITHMETIC = 0x8d5 };
struct registers {
    unsigned long general[GENERAL], vectors[VECTORS][2];
} wanted, found;

/* Calls io_uring_enter(fd, 1, 0, 0). Sets r8, r9, r12 to r15, rbx, rbp and the vectors from `wanted`, and stores the other registers there. */
long enter_with(long fd);
__asm__(".pushsection .text\n"
        ".globl enter_with\n.type enter_with,@function\n"
        "enter_with:\n"
        ".irp register, rbx, rbp, r12, r13, r14, r15\n\tpush %\\register\n.endr\n"
        "lea wanted(%rip), %rcx\n"
        ".irp index, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "movups 112 + 16 * \\index(%rcx), %xmm\\index\n.endr\n"
        "mov (%rcx), %r8\n mov 8(%rcx), %r9\n mov 16(%rcx), %r12\n mov 24(%rcx), %r13\n mov 32(%rcx), %r14\n"
        "mov 40(%rcx), %r15\n mov 48(%rcx), %rbx\n mov 56(%rcx), %rbp\n"
        "mov $1, %esi\n xor %edx, %edx\n xor %r10d, %r10d\n"
        "mov %rdi, 64(%rcx)\n mov %rsi, 72(%rcx)\n mov %rdx, 80(%rcx)\n mov %r10, 88(%rcx)\n mov %rsp, 96(%rcx)\n"
        /* Sets the overflow, sign, adjust and carry flags. */
        "mov $0x7fffffff, %eax\n add $1, %eax\n stc\n"
        "pushf\n pop 104(%rcx)\n"
        "mov $426, %eax\n syscall\n"
        "lea found(%rip), %rcx\n"
        "mov %r8, (%rcx)\n mov %r9, 8(%rcx)\n mov %r12, 16(%rcx)\n mov %r13, 24(%rcx)\n mov %r14, 32(%rcx)\n"
        "mov %r15, 40(%rcx)\n mov %rbx, 48(%rcx)\n mov %rbp, 56(%rcx)\n mov %rdi, 64(%rcx)\n mov %rsi, 72(%rcx)\n"
        "mov %rdx, 80(%rcx)\n mov %r10, 88(%rcx)\n mov %rsp, 96(%rcx)\n pushf\n pop 104(%rcx)\n"
        ".irp index, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "movups %xmm\\index, 112 + 16 * \\index(%rcx)\n.endr\n"
        ".irp register, r15, r14, r13, r12, rbp, rbx\n\tpop %\\register\n.endr\n"
        "ret\n.size enter_with, . - enter_with\n.popsection");

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
    unsigned long at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
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
            __asm__ volatile("int3");
        }
        long taken = enter_and_compare(ring.fd);
        if (i >= CALLS_BEFORE) {
            shared->phase = 2;
            __asm__ volatile("int3");
        }
        CHECK(taken == 1 && ring_peek(&ring) && ring_peek(&ring)->user_data == (uint64_t)i);
        ring_seen(&ring);
    }
}

static pid_t child;
static struct user_regs_struct registers;

/* Continues the child with a signal, until it stops; returns the signal of the stop. */
static int go_on(int how, int signal) {
    int status;
    CHECK(ptrace(how, child, 0, signal) == 0 && waitpid(child, &status, 0) == child);
    if (!WIFSTOPPED(status)) {
        printf("the process has ended: %x\n", status);
        fflush(stdout);
        _exit(98);
    }
    CHECK(ptrace(PTRACE_GETREGS, child, 0, &registers) == 0);
    return WSTOPSIG(status);
}

/* Continues the child up to the next SIGTRAP, and delivers the signals that stop it before. */
static void go_on_to_trap(int signal) {
    while ((signal = go_on(PTRACE_CONT, signal)) != SIGTRAP)
        ;
}

static unsigned long *places, first_stack;
static long count;

static int is_off_stack(void) { return labs((long)(registers.rsp - first_stack)) > 1 << 16; }

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
        CHECK(ptrace(PTRACE_POKETEXT, child, places[from], (word & ~0xffl) | 0xcc) == 0);
        go_on_to_trap(0);
        CHECK(ptrace(PTRACE_POKETEXT, child, places[from], word) == 0);
        if (registers.rip != places[from] + 1)
            return 0;
        registers.rip--;
        CHECK(ptrace(PTRACE_SETREGS, child, 0, &registers) == 0);
    }
    for (; from < point; from++)
        if (go_on(PTRACE_SINGLESTEP, 0) != SIGTRAP || shared->phase != 1)
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
            go_on(PTRACE_SINGLESTEP, first);
            shared->handler = registers.rip;
            int signal = SIGTRAP;
            for (int i = 0; i < later && signal == SIGTRAP && shared->phase == 1; i++)
                signal = go_on(PTRACE_SINGLESTEP, 0);
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
    CHECK(ptrace(PTRACE_GETREGS, child, 0, &registers) == 0);
    first_stack = registers.rsp;
    for (count = 0; shared->phase == 1 && count < MOST; count++) {
        places[count] = registers.rip;
        go_on(PTRACE_SINGLESTEP, 0);
    }
    /* The last recorded instructions are the program's own, between the end of the call and the change of the phase. */
    while (shared->phase != 1)
        go_on_to_trap(0);
    long tried = 0, came = 0, most = atol(getenv("STEPPED_POINTS") ? getenv("STEPPED_POINTS") : "200");
    long stride = count / most + 1;
    for (long point = 0; point < count - 1; point++) {
        int is_near_end = point < 150 || point > count - 250;
        if (!is_near_end && point % stride)
            continue;
        for (int signals = 1; signals <= 2; signals++)
            tried++, came += send(point, signals, -1);
        if (point % (is_near_end ? 15 : stride * 40) == 0)
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
