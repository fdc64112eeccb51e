package PACKAGE_test

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

// The process keeps a ring, on which it has made a request, wherever it may have one.
func init() {
	const (
		setup, enter = 425, 426
		entries      = 8
		shared       = syscall.MAP_SHARED | syscall.MAP_POPULATE
		access       = syscall.PROT_READ | syscall.PROT_WRITE
	)
	// struct io_uring_params, of 32-bit words.
	var params [30]uint32
	fd, _, errno := syscall.Syscall(setup, entries, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return
	}
	ring, err := syscall.Mmap(int(fd), 0, int(params[16]+params[0]*4), access, shared)
	if err != nil {
		panic(err)
	}
	// Zeros are a request that does nothing, and entry 0 is the first.
	if _, err := syscall.Mmap(int(fd), 0x10000000, int(params[0]*64), access, shared); err != nil {
		panic(err)
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&ring[params[11]])), 1)
	if done, _, errno := syscall.Syscall6(enter, fd, 1, 1, 1, 0, 0); done != 1 {
		panic(errno)
	}
}
