//! The faults, each with what it does and what allows it.

/// The behaviour of a correct program that meets a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The program goes on: the fault is part of what the ABI tells programs to expect.
    Ordinary,
    /// The program may give up, and say so: a resource is short.
    Failure,
    /// The program goes on, but the kernel as it is does not do this, and a program may have come to count on that.
    Strict,
}

/// The kind of thing that meets a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Met {
    /// A request.
    Request,
    /// A call of `setup`.
    Setup,
    /// A call of `enter`.
    Enter,
    /// A call of `register`.
    Register,
}

macro_rules! faults {
    ($(
        $(#[doc = $doc:literal])+
        $variant:ident = $number:literal, $class:ident, $met:ident, $name:literal, $about:literal, from $source:literal;
    )*) => {
        /// A fault that the ABI allows.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Fault {
            $(
                $(#[doc = $doc])+
                #[doc = ""]
                #[doc = $source]
                $variant = $number,
            )*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$variant),*];

            /// The fault that the number stands for.
            pub const fn of(number: u16) -> Option<Fault> {
                match number {
                    $($number => Some(Fault::$variant),)*
                    _ => None,
                }
            }

            /// The fault's name.
            pub const fn name(self) -> &'static str {
                match self { $(Fault::$variant => $name,)* }
            }

            /// The fault's effect, in one line.
            pub const fn about(self) -> &'static str {
                match self { $(Fault::$variant => $about,)* }
            }

            /// The source that allows the fault: a page of the manual, a file of the kernel.
            pub const fn source(self) -> &'static str {
                match self { $(Fault::$variant => $source,)* }
            }

            /// The behaviour of a correct program that meets the fault.
            pub const fn class(self) -> Class {
                match self { $(Fault::$variant => Class::$class,)* }
            }

            /// The kind of thing that meets the fault.
            pub const fn met_by(self) -> Met {
                match self { $(Fault::$variant => Met::$met,)* }
            }
        }
    };
}

faults! {
    /// A transfer moves a part of the bytes: the first ones.
    Short = 1, Ordinary, Request, "short", "a transfer moves only a part",
    from "read(2), write(2), send(2), recv(2), splice(2), io_uring_prep_recv(3) of bundles: fewer bytes than asked for are no error.";
    /// A request is interrupted before it has done anything.
    Interrupted = 2, Ordinary, Request, "eintr", "a request fails with EINTR",
    from "io_uring/rw.c, `io_rw_done`: a call that would be restarted fails with EINTR; io_uring/net.c does the same; fsync(2), fallocate(2).";
    /// A request that is not to wait finds that it would have to.
    Again = 3, Ordinary, Request, "eagain", "a request that must not wait fails with EAGAIN",
    from "read(2), recv(2): EAGAIN where O_NONBLOCK, RWF_NOWAIT or MSG_DONTWAIT is set; select(2): a file may be reported as ready and is not.";
    /// A send finds no room for its message.
    NoBuffers = 4, Failure, Request, "enobufs", "a send fails with ENOBUFS",
    from "send(2): ENOBUFS where the queue of an interface is full; for zero copy, net/core/skbuff.c.";
    /// A request finds no memory.
    NoMemory = 5, Failure, Request, "enomem", "a request fails with ENOMEM",
    from "io_uring/rw.c, io_uring/net.c: memory for vectors and messages is allocated, which may fail; open(2), stat(2), ...: also for paths.";
    /// A request is cancelled though nobody asked for it.
    Canceled = 6, Failure, Request, "ecanceled", "a request fails with ECANCELED",
    from "io_uring/poll.c, `io_poll_check_events`: the work is terminated; io_uring/io_uring.c: so is the work of workers that end.";
    /// A completion comes late, behind others that came about after it.
    Late = 7, Ordinary, Request, "late", "a completion comes late, behind others",
    from "io_uring(7): completions come in any order, unless requests are linked or drained.";
    /// A multishot request ends, with a CQE without IORING_CQE_F_MORE.
    MultishotEnds = 8, Ordinary, Request, "multishot", "a multishot request ends early, without F_MORE",
    from "io_uring_multishot(7): it may end at any time, and is to be armed again.";
    /// The notification of a zero-copy send comes late.
    NotificationLate = 9, Ordinary, Request, "notif", "the notification of a zero-copy send comes late",
    from "io_uring_prep_send_zc(3): the second CQE comes when the memory is free, in any order.";
    /// A CQE is kept as overflow though there is room.
    Overflow = 10, Ordinary, Request, "overflow", "a CQE is kept as overflow",
    from "io_uring_setup(2), IORING_FEAT_NODROP; io_uring/io_uring.c: after a CQE that is kept, all later ones are kept, until a call flushes them.";
    /// A group of provided buffers is empty.
    GroupDry = 11, Ordinary, Request, "dry", "a buffer group has no buffer (ENOBUFS)",
    from "io_uring_provided_buffers(7): ENOBUFS where the group is empty; another request may have taken the last.";
    /// A cancellation finds its request too far to be stopped: it ends soon.
    CancelTooLate = 12, Ordinary, Request, "cancel", "a cancellation comes too late (EALREADY)",
    from "io_uring_prep_cancel(3): EALREADY; the request ends soon, or is interrupted.";
    /// A wait of `enter` is ended by a signal.
    EnterInterrupted = 13, Ordinary, Enter, "enter-eintr", "enter's wait ends with EINTR, or with fewer completions",
    from "io_uring_enter(2): EINTR; if SQEs were submitted, their number is returned instead.";
    /// `enter` has no memory for requests; it submits nothing.
    EnterAgain = 14, Ordinary, Enter, "enter-eagain", "enter fails with EAGAIN and submits nothing",
    from "io_uring_enter(2): EAGAIN: wait for completions, and try again.";
    /// `enter` wants completions to be reaped first; it submits nothing.
    EnterBusy = 15, Ordinary, Enter, "enter-ebusy", "enter fails with EBUSY and submits nothing",
    from "io_uring_enter(2): EBUSY: reap completions, and try again.";
    /// `enter` submits a part of the SQEs, and does not wait.
    ShortSubmission = 16, Ordinary, Enter, "submit", "enter submits only a part of the SQEs",
    from "io_uring_enter(2): it returns how many were consumed; io_uring/io_uring.c: if that is less than all, it does not wait.";
    /// `setup` finds no memory.
    SetupNoMemory = 17, Failure, Setup, "setup-enomem", "setup fails with ENOMEM",
    from "io_uring_setup(2): ENOMEM.";
    /// `register` finds no memory.
    RegisterNoMemory = 18, Failure, Register, "register-enomem", "register fails with ENOMEM",
    from "io_uring_register(2): ENOMEM.";
    /// `register` finds what it needs in use.
    RegisterBusy = 19, Failure, Register, "register-ebusy", "register fails with EBUSY",
    from "io_uring_register(2): EBUSY.";
    /// CQEs are overwritten once the program has passed them.
    CqeRubbish = 20, Ordinary, Enter, "cqe-rubbish", "reaped CQEs are overwritten",
    from "io_uring(7): what lies before the head belongs to the kernel again.";
    /// SQEs are overwritten once they are consumed.
    SqeRubbish = 21, Strict, Request, "sqe-rubbish", "consumed SQEs are overwritten",
    from "io_uring(7): a consumed SQE may be used again, and must then be filled in completely.";
    /// Memory to be filled holds rubbish until it is; what is not filled keeps it.
    BufferRubbish = 22, Strict, Request, "buffer-rubbish", "memory that is to be filled holds rubbish before",
    from "read(2), recv(2): nothing is promised about the bytes behind those that were read.";
    /// A submission finds no memory for the next request of a chain, which ends there; what is left of it is another one.
    TornChain = 23, Failure, Enter, "torn-chain", "enter submits a part of the SQEs, and splits a chain",
    from "io_uring/io_uring.c, `io_submit_sqes`: if a request cannot be allocated, the submission ends, also in the middle of a chain.";
    /// A wait on a polled ring ends because the thread is to give way to another.
    EnterNothing = 24, Ordinary, Enter, "enter-nothing", "enter's wait on a polled ring returns without completions",
    from "io_uring/io_uring.c, `io_iopoll_check`: it returns 0 if another thread is to run, even if there are completions.";
    /// A thread is held up before a call does anything.
    PauseBefore = 25, Ordinary, Enter, "pause-before", "a pause before enter does anything",
    from "sched(7): other threads may run at any moment, for any time.";
    /// A thread is held up between taking an SQE and issuing it.
    PauseIssue = 26, Ordinary, Request, "pause-issue", "a pause between taking an SQE and issuing it",
    from "sched(7): other threads may do something meanwhile.";
    /// A thread is held up between posting a CQE and waking who waits for it.
    PauseWake = 27, Ordinary, Request, "pause-wake", "a pause between posting a CQE and waking the waiting thread",
    from "sched(7): the CQE can be reaped before a wait returns, and before an eventfd or poll reports it.";
    /// A thread is held up when a call has done what it is to do.
    PauseAfter = 28, Ordinary, Enter, "pause-after", "a pause before enter returns",
    from "sched(7): submitted requests may be complete by then, and reaped by another thread.";
    /// The process has no descriptor left.
    NoDescriptor = 29, Failure, Request, "emfile", "a request that makes a descriptor fails with EMFILE",
    from "open(2), accept(2), socket(2), pipe(2): EMFILE at the limit of the process.";
    /// The system has no open file left.
    NoFile = 30, Failure, Request, "enfile", "a request that opens a file fails with ENFILE",
    from "open(2), accept(2), socket(2), pipe(2): ENFILE at the limit of the system.";
    /// The storage below a file fails.
    Device = 31, Failure, Request, "eio", "a transfer or sync of a file fails with EIO",
    from "read(2), write(2), fsync(2), fallocate(2): EIO.";
    /// There is no room for what is written.
    NoSpace = 32, Failure, Request, "enospc", "a write to a file fails with ENOSPC",
    from "write(2), fsync(2), fallocate(2), open(2) with O_CREAT: ENOSPC.";
    /// Nobody listens where a socket is to be connected.
    Refused = 33, Failure, Request, "econnrefused", "connect fails with ECONNREFUSED",
    from "connect(2): ECONNREFUSED.";
    /// A connection has ended before it was accepted.
    Aborted = 34, Ordinary, Request, "econnaborted", "accept fails with ECONNABORTED",
    from "accept(2): ECONNABORTED; programs should treat network errors like EAGAIN, and retry.";
}

impl Fault {
    /// True if the program tries the same again. Such a fault is met at most every other time, or there would be no end.
    pub const fn is_tried_again(self) -> bool {
        matches!(
            self,
            Fault::Interrupted
                | Fault::Again
                | Fault::NoBuffers
                | Fault::NoMemory
                | Fault::Canceled
                | Fault::GroupDry
                | Fault::EnterInterrupted
                | Fault::EnterAgain
                | Fault::EnterBusy
                | Fault::EnterNothing
                | Fault::NoDescriptor
                | Fault::NoFile
                | Fault::Device
                | Fault::NoSpace
                | Fault::Refused
                | Fault::Aborted
                | Fault::SetupNoMemory
                | Fault::RegisterNoMemory
                | Fault::RegisterBusy
        )
    }

    /// That of a name.
    pub fn named(name: &str) -> Option<Fault> {
        Fault::ALL.iter().copied().find(|fault| fault.name() == name)
    }
}

/// Some faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults(u64);

impl Faults {
    /// None.
    pub const NONE: Faults = Faults(0);
    /// All.
    pub const ALL: Faults = Faults::list(Fault::ALL);
    /// The faults that a correct program does not even show ([`Class::Ordinary`]).
    pub const ORDINARY: Faults = {
        let (mut faults, mut place) = (Faults::NONE, 0);
        while place < Fault::ALL.len() {
            if matches!(Fault::ALL[place].class(), Class::Ordinary) {
                faults = faults.with(Fault::ALL[place]);
            }
            place += 1;
        }
        faults
    };

    /// The faults of a list.
    pub const fn list(list: &[Fault]) -> Faults {
        let (mut faults, mut place) = (Faults::NONE, 0);
        while place < list.len() {
            faults = faults.with(list[place]);
            place += 1;
        }
        faults
    }

    /// One more.
    pub const fn with(self, fault: Fault) -> Faults {
        Faults(self.0 | 1 << fault as u16)
    }

    /// One less.
    pub const fn without(self, fault: Fault) -> Faults {
        Faults(self.0 & !(1 << fault as u16))
    }

    /// The faults that both sets have.
    pub const fn and(self, other: Faults) -> Faults {
        Faults(self.0 & other.0)
    }

    /// The faults that either set has.
    pub const fn or(self, other: Faults) -> Faults {
        Faults(self.0 | other.0)
    }

    /// True if the fault is among them.
    pub const fn has(self, fault: Fault) -> bool {
        self.0 & 1 << fault as u16 != 0
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = Fault> {
        Fault::ALL.iter().copied().filter(move |fault| self.has(*fault))
    }

    /// As one number.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The faults that the bits stand for; bits that stand for none are passed over.
    pub const fn of_bits(bits: u64) -> Faults {
        Faults(bits & Faults::ALL.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_tell_faults_apart() {
        for &fault in Fault::ALL {
            assert_eq!(Fault::of(fault as u16), Some(fault));
            assert_eq!(Fault::named(fault.name()), Some(fault));
            assert!(Faults::ALL.has(fault));
            assert!(!Faults::ALL.without(fault).has(fault));
        }
        assert_eq!(Faults::ALL.iter().count(), Fault::ALL.len());
        assert!(Faults::ORDINARY.has(Fault::Short) && !Faults::ORDINARY.has(Fault::SetupNoMemory));
        assert_eq!(Faults::of_bits(u64::MAX), Faults::ALL);
    }
}
