// Does its I/O through giouring, from as many goroutines as it is told, while the collector runs and the
// runtime preempts: every block is checked twice, as the ring reads it and as plain calls do.
//
//	rings files DIRECTORY RINGS BLOCKS
//	rings sockets RINGS MESSAGES
//	rings children DIRECTORY PROGRAM...    itself, and another program below a third
package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/pawelgaczynski/giouring"
)

const (
	depth = 32
	block = 4096
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

// heap allocates what the runtime will not move, as it moves stacks.
//
//go:noinline
func heap(length int) []byte { return make([]byte, length) }

func address(buffer []byte) uintptr { return uintptr(unsafe.Pointer(&buffer[0])) }

// fresh is the next entry, without what giouring leaves in it from an earlier use.
func fresh(ring *giouring.Ring) *giouring.SubmissionQueueEntry {
	entry := ring.GetSQE()
	*entry = giouring.SubmissionQueueEntry{}
	return entry
}

// one submits an entry and returns its result.
func one(ring *giouring.Ring, prepare func(*giouring.SubmissionQueueEntry)) int32 {
	entry := fresh(ring)
	prepare(entry)
	entry.UserData = 1
	for {
		_, err := ring.SubmitAndWait(1)
		if !errors.Is(err, syscall.EINTR) {
			check(err)
			break
		}
	}
	var event *giouring.CompletionQueueEvent
	for {
		var err error
		if event, err = ring.WaitCQE(); !errors.Is(err, syscall.EINTR) {
			check(err)
			break
		}
	}
	result := event.Res
	ring.CQESeen(event)
	return result
}

// all does one operation per block, in an order of its own, many in flight.
func all(ring *giouring.Ring, order []int, prepare func(*giouring.SubmissionQueueEntry, int)) {
	next, flying := 0, 0
	for next < len(order) || flying > 0 {
		for next < len(order) && flying < depth {
			entry := fresh(ring)
			prepare(entry, order[next])
			entry.UserData = uint64(order[next])
			next++
			flying++
		}
		if _, err := ring.SubmitAndWait(1); err != nil && !errors.Is(err, syscall.EINTR) {
			panic(err)
		}
		for {
			event, err := ring.PeekCQE()
			if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) {
				break
			}
			check(err)
			if event == nil {
				break
			}
			if event.Res != block {
				panic(fmt.Sprintf("block %d: %d", event.UserData, event.Res))
			}
			ring.CQESeen(event)
			flying--
		}
	}
}

func file(path string, blocks int, seed int64) {
	ring, err := giouring.CreateRing(depth)
	check(err)
	defer ring.QueueExit()
	// giouring's own way to open passes something else than the path.
	opened, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	check(err)
	fd := int(opened.Fd())
	random := rand.New(rand.NewSource(seed))
	content, again := heap(blocks*block), heap(blocks*block)
	random.Read(content)
	at := func(buffer []byte, index int) uintptr { return address(buffer[index*block:]) }
	all(ring, random.Perm(blocks), func(entry *giouring.SubmissionQueueEntry, index int) {
		entry.PrepareWrite(fd, at(content, index), block, uint64(index*block))
	})
	if result := one(ring, func(entry *giouring.SubmissionQueueEntry) { entry.PrepareFsync(fd, 0) }); result != 0 {
		panic(syscall.Errno(-result))
	}
	all(ring, random.Perm(blocks), func(entry *giouring.SubmissionQueueEntry, index int) {
		entry.PrepareRead(fd, at(again, index), block, uint64(index*block))
	})
	plain, err := os.ReadFile(path)
	check(err)
	if !bytes.Equal(content, again) || !bytes.Equal(content, plain) {
		panic(path + ": not what was written")
	}
	check(opened.Close())
}

// echo serves one connection by a ring until its other side is closed.
func echo(connection *os.File) {
	ring, err := giouring.CreateRing(depth)
	check(err)
	defer ring.QueueExit()
	fd, buffer := int(connection.Fd()), heap(block)
	for {
		count := one(ring, func(entry *giouring.SubmissionQueueEntry) {
			entry.PrepareRecv(fd, address(buffer), block, 0)
		})
		if count <= 0 {
			break
		}
		for sent := int32(0); sent < count; {
			result := one(ring, func(entry *giouring.SubmissionQueueEntry) {
				entry.PrepareSend(fd, address(buffer[sent:]), uint32(count-sent), 0)
			})
			if result <= 0 {
				panic(syscall.Errno(-result))
			}
			sent += result
		}
	}
	check(connection.Close())
}

func conversation(messages int, seed int64) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	served := make(chan struct{})
	go func() {
		connection, err := listener.Accept()
		check(err)
		file, err := connection.(*net.TCPConn).File()
		check(err)
		check(connection.Close())
		echo(file)
		close(served)
	}()
	client, err := net.Dial("tcp", listener.Addr().String())
	check(err)
	random := rand.New(rand.NewSource(seed))
	for range make([]struct{}, messages) {
		message := make([]byte, 1+random.Intn(2*block))
		random.Read(message)
		again := make([]byte, len(message))
		_, err := client.Write(message)
		check(err)
		_, err = io.ReadFull(client, again)
		check(err)
		if !bytes.Equal(message, again) {
			panic("not what was sent")
		}
	}
	check(client.Close())
	<-served
	check(listener.Close())
}

// disturb keeps the collector and the scheduler's signals busy until the work is done.
func disturb(done *atomic.Bool) {
	go func() {
		for !done.Load() {
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
	}()
	go func() {
		var sum uint64
		for i := uint64(0); ; i++ {
			if sum += i; i%(1<<28) == 0 && done.Load() {
				return
			}
		}
	}()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGUSR1)
	go func() {
		for !done.Load() {
			check(syscall.Kill(os.Getpid(), syscall.SIGUSR1))
			time.Sleep(100 * time.Microsecond)
		}
	}()
}

func together(count int, work func(int)) {
	var group sync.WaitGroup
	for index := 0; index < count; index++ {
		group.Add(1)
		go func(index int) {
			defer group.Done()
			work(index)
		}(index)
	}
	group.Wait()
}

func children(directory string, program []string) {
	itself, err := os.Executable()
	check(err)
	for _, path := range []string{itself, "/proc/self/exe"} {
		child := exec.Command(path, "files", directory, "1", "16")
		child.Stderr = os.Stderr
		output, err := child.Output()
		check(err)
		fmt.Print("child: ", string(output))
	}
	child := exec.Command("sh", "-c", `"$@"`, "sh")
	child.Args = append(child.Args, program...)
	child.Stderr = os.Stderr
	// Without anything of this process's environment.
	child.Env = []string{"PATH=" + os.Getenv("PATH")}
	output, err := child.Output()
	check(err)
	fmt.Print("below a shell: ", string(output))
}

func main() {
	var done atomic.Bool
	arguments := os.Args[2:]
	switch os.Args[1] {
	case "files":
		disturb(&done)
		together(number(arguments[1]), func(index int) {
			file(filepath.Join(arguments[0], fmt.Sprint("file", index)), number(arguments[2]), int64(index))
		})
		sum := sha256.New()
		for index := 0; index < number(arguments[1]); index++ {
			content, err := os.ReadFile(filepath.Join(arguments[0], fmt.Sprint("file", index)))
			check(err)
			sum.Write(content)
		}
		fmt.Printf("files: %x\n", sum.Sum(nil)[:8])
	case "sockets":
		disturb(&done)
		together(number(arguments[0]), func(index int) { conversation(number(arguments[1]), int64(index)) })
		fmt.Println("sockets: done")
	case "children":
		children(arguments[0], arguments[1:])
	}
	done.Store(true)
	// A fault that the runtime turns into a panic.
	defer func() { fmt.Println("recovered:", recover() != nil) }()
	var nowhere *[4]int
	fmt.Println(nowhere[3])
}
