/* clone3 creates threads, which use the ring of the process, and other children in the same memory. */
#include "ring.h"
#include <linux/sched.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { STACK = 1 << 16, TIMES = 50 };
static struct ring ring;
static volatile unsigned done, ended;
static long made;
static int is_thread;

/* The child's function, on a stack of its own. The child has the thread pointer of its parent, which waits meanwhile. */
static void begin(void) {
    if (is_thread) {
        ring_entry(&ring, IORING_OP_NOP, 7);
        made = ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS);
    }
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    call_by_instruction(SYS_exit, 0, 0, 0, 0, 0, 0);
}

static long clone3(struct clone_args *arguments) {
    long result;
    __asm__ volatile("mov $435, %%eax\n\tsyscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\txor %%ebp, %%ebp\n\tcall *%[begin]\n1:"
                     : "=&a"(result)
                     : "D"(arguments), "S"(sizeof *arguments), [begin] "r"(begin)
                     : "rcx", "r11", "memory");
    return result;
}

static long clones(unsigned long flags, void *stack, int signal) {
    done = 0, ended = 1, made = -1, is_thread = (flags & CLONE_THREAD) != 0;
    struct clone_args arguments = {.flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SYSVSEM | flags,
                                   .exit_signal = signal,
                                   .stack = (uintptr_t)stack,
                                   .stack_size = STACK,
                                   .child_tid = (uintptr_t)&ended};
    return clone3(&arguments);
}

static void *stack;

static void make_thread(int signal) {
    (void)signal;
    CHECK(clones(CLONE_SIGHAND | CLONE_THREAD | CLONE_CHILD_CLEARTID, stack, 0) > 0);
    while (__atomic_load_n(&ended, __ATOMIC_ACQUIRE))
        sched_yield();
}

static void took_one(void) {
    CHECK(made == 1 && ring_peek(&ring) && ring_peek(&ring)->user_data == 7);
    ring_seen(&ring);
}

int main(void) {
    stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED && ring_open(&ring, 8, 0) == 0);
    for (int i = 0; i < TIMES; i++) {
        make_thread(0);
        CHECK(done);
        took_one();
    }
    printf("threads: %d\n", TIMES);
    for (int i = 0; i < TIMES; i++) {
        int status;
        long child = clones(0, stack, SIGCHLD);
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0 && done);
    }
    printf("children in the same memory: %d\n", TIMES);
    for (int i = 0; i < TIMES; i++) {
        int status;
        long child = clones(CLONE_VFORK, stack, SIGCHLD);
        CHECK(child > 0 && done && waitpid(child, &status, 0) == child && status == 0);
    }
    printf("children that are waited for: %d\n", TIMES);
    struct sigaction action = {.sa_handler = make_thread, .sa_flags = SA_ONSTACK};
    stack_t alternate = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    CHECK(sigaltstack(&alternate, 0) == 0 && sigaction(SIGUSR1, &action, 0) == 0 && raise(SIGUSR1) == 0);
    took_one();
    printf("a thread made by a handler on an alternate stack\n");
    struct clone_args wrong = {.flags = CLONE_THREAD | CLONE_VM, .stack = (uintptr_t)stack, .stack_size = STACK};
    printf("a thread with handlers of its own: %ld\n", clone3(&wrong));
    wrong.flags = CLONE_VM | 1ull << 60;
    printf("no such flag: %ld\n", clone3(&wrong));
    return 0;
}
