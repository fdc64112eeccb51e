//! The faults, with the effect of each and the document that allows it.

/// The behaviour that a correct program shows when it meets a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The program continues: the ABI tells programs to expect the fault.
    Ordinary,
    /// The program may give up and report it, because a resource is short.
    Failure,
    /// The program continues, but the real kernel never does this, and a program may rely on that.
    Strict,
    /// The program ends, and starts again with what is left: `anyring chaos --power-cut`.
    Power,
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
            /// All faults.
            pub const ALL: &[Fault] = &[$(Fault::$variant),*];

            /// Returns the fault with this number.
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

            /// The document that allows the fault: a manual page, or a file of the kernel.
            pub const fn source(self) -> &'static str {
                match self { $(Fault::$variant => $source,)* }
            }

            /// The behaviour that a correct program shows when it meets the fault.
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
    /// A transfer moves only the first part of the bytes.
    Short = 1, Ordinary, Request, "short", "a transfer moves only a part",
    from "read(2), write(2), send(2), recv(2), splice(2), io_uring_prep_recv(3) of bundles: fewer bytes than asked for are no error.";
    /// A request is interrupted before it has done anything.
    Interrupted = 2, Ordinary, Request, "eintr", "a request fails with EINTR",
    from "io_uring/rw.c, `io_rw_done`: a call that would be restarted fails with EINTR; io_uring/net.c does the same; fsync(2), fallocate(2).";
    /// A request that must not wait would have to.
    Again = 3, Ordinary, Request, "eagain", "a request that must not wait fails with EAGAIN",
    from "read(2), recv(2): EAGAIN where O_NONBLOCK, RWF_NOWAIT or MSG_DONTWAIT is set; select(2): a file may be reported as ready and is not.";
    /// A send finds no room for its message.
    NoBuffers = 4, Failure, Request, "enobufs", "a send fails with ENOBUFS",
    from "send(2): ENOBUFS where the queue of an interface is full; for zero copy, net/core/skbuff.c.";
    /// A request finds no memory.
    NoMemory = 5, Failure, Request, "enomem", "a request fails with ENOMEM",
    from "io_uring/rw.c, io_uring/net.c: memory for vectors and messages is allocated, which may fail; open(2), stat(2), ...: also for paths.";
    /// A request is cancelled although this was not asked for.
    Canceled = 6, Failure, Request, "ecanceled", "a request fails with ECANCELED",
    from "io_uring/poll.c, `io_poll_check_events`: the work is terminated; io_uring/io_uring.c: so is the work of workers that end.";
    /// A completion comes late, after others of requests that ended later.
    Late = 7, Ordinary, Request, "late", "a completion comes late, behind others",
    from "io_uring(7): completions come in any order, unless requests are linked or drained.";
    /// A multishot request ends, with a CQE without IORING_CQE_F_MORE.
    MultishotEnds = 8, Ordinary, Request, "multishot", "a multishot request ends early, without F_MORE",
    from "io_uring_multishot(7): it may end at any time, and is to be armed again.";
    /// The notification of a zero-copy send comes late.
    NotificationLate = 9, Ordinary, Request, "notif", "the notification of a zero-copy send comes late",
    from "io_uring_prep_send_zc(3): the second CQE comes when the memory is free, in any order.";
    /// A CQE goes to the overflow list although there is room.
    Overflow = 10, Ordinary, Request, "overflow", "a CQE is kept as overflow",
    from "io_uring_setup(2), IORING_FEAT_NODROP; io_uring/io_uring.c: after a CQE that is kept, all later ones are kept, until a call flushes them.";
    /// A group of provided buffers is empty.
    GroupDry = 11, Ordinary, Request, "dry", "a buffer group has no buffer (ENOBUFS)",
    from "io_uring_provided_buffers(7): ENOBUFS where the group is empty; another request may have taken the last.";
    /// A cancellation finds that its request cannot be stopped any more: the request ends soon.
    CancelTooLate = 12, Ordinary, Request, "cancel", "a cancellation comes too late (EALREADY)",
    from "io_uring_prep_cancel(3): EALREADY; the request ends soon, or is interrupted.";
    /// A wait of `enter` is ended by a signal.
    EnterInterrupted = 13, Ordinary, Enter, "enter-eintr", "enter's wait ends with EINTR, or with fewer completions",
    from "io_uring_enter(2): EINTR; if SQEs were submitted, their number is returned instead.";
    /// `enter` has no memory for requests, and submits nothing.
    EnterAgain = 14, Ordinary, Enter, "enter-eagain", "enter fails with EAGAIN and submits nothing",
    from "io_uring_enter(2): EAGAIN: wait for completions, and try again.";
    /// `enter` requires completions to be reaped first, and submits nothing.
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
    /// `register` finds that a resource is in use.
    RegisterBusy = 19, Failure, Register, "register-ebusy", "register fails with EBUSY",
    from "io_uring_register(2): EBUSY.";
    /// CQEs are overwritten after the program has reaped them.
    CqeRubbish = 20, Ordinary, Enter, "cqe-rubbish", "reaped CQEs are overwritten",
    from "io_uring(7): what lies before the head belongs to the kernel again.";
    /// SQEs are overwritten after they are consumed.
    SqeRubbish = 21, Strict, Request, "sqe-rubbish", "consumed SQEs are overwritten",
    from "io_uring(7): a consumed SQE may be used again, and must then be filled in completely.";
    /// Memory that is to be filled holds rubbish before; the part that is not filled keeps it.
    BufferRubbish = 22, Strict, Request, "buffer-rubbish", "memory that is to be filled holds rubbish before",
    from "read(2), recv(2): nothing is promised about the bytes behind those that were read.";
    /// A submission finds no memory for the next request of a chain. The chain ends there, and its rest becomes another chain.
    TornChain = 23, Failure, Enter, "torn-chain", "enter submits a part of the SQEs, and splits a chain",
    from "io_uring/io_uring.c, `io_submit_sqes`: if a request cannot be allocated, the submission ends, also in the middle of a chain.";
    /// A wait on a polled ring ends because another thread is to run on the processor.
    EnterNothing = 24, Ordinary, Enter, "enter-nothing", "enter's wait on a polled ring returns without completions",
    from "io_uring/io_uring.c, `io_iopoll_check`: it returns 0 if another thread is to run, even if there are completions.";
    /// A thread is delayed before a call does anything.
    PauseBefore = 25, Ordinary, Enter, "pause-before", "a pause before enter does anything",
    from "sched(7): other threads may run at any moment, for any time.";
    /// A thread is delayed between taking an SQE and issuing it.
    PauseIssue = 26, Ordinary, Request, "pause-issue", "a pause between taking an SQE and issuing it",
    from "sched(7): other threads may do something meanwhile.";
    /// A thread is delayed between posting a CQE and waking the waiting thread.
    PauseWake = 27, Ordinary, Request, "pause-wake", "a pause between posting a CQE and waking the waiting thread",
    from "sched(7): the CQE can be reaped before a wait returns, and before an eventfd or poll reports it.";
    /// A thread is delayed after a call has done its work.
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
    /// Nothing listens at the address to which a socket is to be connected.
    Refused = 33, Failure, Request, "econnrefused", "connect fails with ECONNREFUSED",
    from "connect(2): ECONNREFUSED.";
    /// A connection has ended before it was accepted.
    Aborted = 34, Ordinary, Request, "econnaborted", "accept fails with ECONNABORTED",
    from "accept(2): ECONNABORTED; programs should treat network errors like EAGAIN, and retry.";
    /// The power is cut before an operation on a file is done.
    CutBefore = 35, Power, Request, "cut-before", "the power is cut before an operation is done",
    from "--power-cut: power may be cut at any moment.";
    /// The power is cut after an operation on a file is done and before the program learns of it.
    CutAfter = 36, Power, Request, "cut-after", "the power is cut after an operation is done, before its completion",
    from "--power-cut: power may be cut at any moment.";
    /// The effect of an operation on a file or directory is lost.
    Lost = 37, Power, Request, "lost", "what an operation did is lost, because no sync covers it",
    from "fsync(2): data and directory entries are on the device only after a sync of the file, and of the directory.";
    /// A part of what an operation did to a file or directory is lost.
    Torn = 38, Power, Request, "torn", "a part of what an operation did is lost, because no sync covers it",
    from "write(2): no order of what is written to the device is promised; only a sector is written as a whole.";
}

impl Fault {
    /// True if programs try again after this fault. Such a fault is met at most every other time, or programs would try forever.
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

    /// Returns the fault with this name.
    pub fn named(name: &str) -> Option<Fault> {
        Fault::ALL.iter().copied().find(|fault| fault.name() == name)
    }
}

/// A set of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults(u64);

impl Faults {
    /// The empty set.
    pub const NONE: Faults = Faults(0);
    /// The set of all faults that a run may meet; a power cut ends it.
    pub const ALL: Faults = Faults::of_class(Class::Ordinary)
        .or(Faults::of_class(Class::Failure))
        .or(Faults::of_class(Class::Strict));
    /// The faults that have no visible effect on a correct program ([`Class::Ordinary`]).
    pub const ORDINARY: Faults = Faults::of_class(Class::Ordinary);

    /// Returns the set of the faults of a class.
    pub const fn of_class(class: Class) -> Faults {
        let (mut faults, mut place) = (Faults::NONE, 0);
        while place < Fault::ALL.len() {
            if Fault::ALL[place].class() as u8 == class as u8 {
                faults = faults.with(Fault::ALL[place]);
            }
            place += 1;
        }
        faults
    }

    /// Returns the set of the faults of a list.
    pub const fn list(list: &[Fault]) -> Faults {
        let (mut faults, mut place) = (Faults::NONE, 0);
        while place < list.len() {
            faults = faults.with(list[place]);
            place += 1;
        }
        faults
    }

    /// Adds a fault.
    pub const fn with(self, fault: Fault) -> Faults {
        Faults(self.0 | 1 << fault as u16)
    }

    /// Removes a fault.
    pub const fn without(self, fault: Fault) -> Faults {
        Faults(self.0 & !(1 << fault as u16))
    }

    /// Returns the faults that are in both sets.
    pub const fn and(self, other: Faults) -> Faults {
        Faults(self.0 & other.0)
    }

    /// Returns the faults that are in at least one of the sets.
    pub const fn or(self, other: Faults) -> Faults {
        Faults(self.0 | other.0)
    }

    /// True if the fault is in the set.
    pub const fn has(self, fault: Fault) -> bool {
        self.0 & 1 << fault as u16 != 0
    }

    /// Iterates over the faults of the set.
    pub fn iter(self) -> impl Iterator<Item = Fault> {
        Fault::ALL.iter().copied().filter(move |fault| self.has(*fault))
    }

    /// Returns the set as a bit mask.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the set of a bit mask; unknown bits are ignored.
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
            assert_eq!(Faults::ALL.has(fault), fault.class() != Class::Power);
            assert!(!Faults::ALL.without(fault).has(fault));
        }
        let cuts = Faults::of_class(Class::Power);
        assert_eq!(Faults::ALL.iter().count() + cuts.iter().count(), Fault::ALL.len());
        assert!(Faults::ORDINARY.has(Fault::Short) && !Faults::ORDINARY.has(Fault::SetupNoMemory));
        assert_eq!(Faults::of_bits(u64::MAX), Faults::ALL);
    }
}
