/* A library whose constructor removes a page of the program's code that never runs. -DPROGRAM: the program, which has its own
 * `dl_iterate_phdr`, which must not be called before the program's constructors. */
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef PROGRAM

int guards(void);

typedef int (*callback)(struct dl_phdr_info *, size_t, void *);

static int is_ready;

__attribute__((constructor)) static void begin(void) { is_ready = 1; }

int dl_iterate_phdr(callback one, void *argument) {
    (void)one, (void)argument;
    if (!is_ready) abort();
    return 0;
}

__attribute__((used)) static void room(void) { __asm__ volatile(".skip 5 * 65536, 0x90"); }

int main(void) {
    printf("guards: %d\n", guards());
    return 0;
}

#else

#include <sys/auxv.h>

static int result = -1;

__attribute__((constructor)) static void begin(void) {
    /* The program's entry is at the beginning or the end of its code, and `room` in the middle. */
    const ElfW(Phdr) *all = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    size_t base = (size_t)all - all[0].p_vaddr, page = getauxval(AT_PAGESZ);
    for (size_t i = 0; i < getauxval(AT_PHNUM); i++)
        if (all[i].p_type == PT_LOAD && all[i].p_flags & PF_X)
            result = mprotect((char *)((base + all[i].p_vaddr) & -page) + 2 * page, page, PROT_NONE);
}

int guards(void) { return result; }

#endif
