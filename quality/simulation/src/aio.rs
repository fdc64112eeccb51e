//! Linux AIO over the simulated files: a device that completes late and out of order, with a system thread for each transfer at the
//! device.

use linux_raw_sys::errno as raw;
use linux_raw_sys::general::{EPOLLIN, O_DIRECT, RWF_NOWAIT};

use crate::calls::{self, Answer, Held, deadline, time_at};
use crate::kernel::{Errno, File, Kernel, Object};
use crate::world::{self, Wait, Woken, World, world};

const MAGIC: u32 = 0xa10a_10a1;
/// Words of the header; `head` and `tail` follow the number and the count.
const HEADER: usize = 4;
/// Words of an event.
const EVENT: usize = 4;

/// The minimum time of a transfer at a device that stalls: longer than the program takes to rest.
const STALL_NS: usize = 10_000_000_000;

const FSYNC: u16 = 2;
const FDSYNC: u16 = 3;
const POLL: u16 = 5;
const PREADV: u16 = 7;
const PWRITEV: u16 = 8;
const FLAG_RESFD: u32 = 1;

/// An AIO context.
#[derive(Debug)]
pub struct Context {
    memory: Box<[u64]>,
    most: usize,
    in_flight: usize,
    /// Pending polls: the description, and the data of the event.
    polls: Vec<(usize, u64)>,
    ended: bool,
}

impl Context {
    fn new(most: usize) -> Context {
        let count = most + 2;
        let mut memory = vec![0u64; HEADER + EVENT * count].into_boxed_slice();
        memory[0] = (count as u64) << 32;
        memory[2] = u64::from(MAGIC) | 1 << 32;
        memory[3] = (HEADER as u64 * 8) << 32;
        Context { memory, most, in_flight: 0, polls: Vec::new(), ended: false }
    }

    fn count(&self) -> u32 {
        (self.memory[0] >> 32) as u32
    }

    /// Returns the positions of the next event to take and to put. The engine changes the first.
    fn ends(&self) -> (u32, u32) {
        // SAFETY: a word of ours, which the engine writes in the same thread of the real system.
        let word = unsafe { (&raw const self.memory[1]).read_volatile() };
        (word as u32, (word >> 32) as u32)
    }

    fn events(&self) -> usize {
        let (head, tail) = self.ends();
        ((tail + self.count() - head) % self.count()) as usize
    }

    fn post(&mut self, data: u64, result: i64) {
        let (head, tail) = self.ends();
        let place = HEADER + EVENT * tail as usize;
        self.memory[place..place + EVENT].copy_from_slice(&[data, 0, result as u64, 0]);
        let next = (tail + 1) % self.count();
        assert!(next != head, "there are no more events than transfers");
        self.memory[1] = u64::from(head) | u64::from(next) << 32;
        self.in_flight -= 1;
    }
}

/// The command of a transfer.
struct Command {
    data: u64,
    flags: u32,
    opcode: u16,
    fd: i32,
    address: u64,
    offset: u64,
    tells: Option<i32>,
}

impl Command {
    fn at(address: usize) -> Command {
        // SAFETY: an `iocb` of the caller's.
        let words = unsafe { *(address as *const [u64; 8]) };
        let told = words[7] as u32 & FLAG_RESFD != 0;
        Command {
            data: words[0],
            flags: (words[1] >> 32) as u32,
            opcode: words[2] as u16,
            fd: (words[2] >> 32) as i32,
            address: words[3],
            offset: words[5],
            tells: told.then_some((words[7] >> 32) as i32),
        }
    }
}

/// Returns the index of the context at an address.
fn index_of(address: usize) -> Result<usize, Errno> {
    world(|world| {
        let is_it = |context: &Context| !context.ended && context.memory.as_ptr() as usize == address;
        world.kernel.contexts.iter().position(is_it).ok_or(raw::EINVAL)
    })
}

pub fn setup(most: usize, place: usize) -> Answer {
    if world(|world| world.refuses_file()) {
        return Err(raw::EAGAIN);
    }
    world(|world| {
        let context = Context::new(most);
        // SAFETY: writes a word of the caller.
        unsafe { (place as *mut usize).write(context.memory.as_ptr() as usize) };
        world.kernel.contexts.push(context);
    });
    Ok(0)
}

/// Destroys a context, after all transfers in flight have ended.
pub fn destroy(address: usize) -> Answer {
    let index = index_of(address)?;
    world(|world| {
        let context = &mut world.kernel.contexts[index];
        context.ended = true;
        context.in_flight -= context.polls.len();
        for (description, _) in std::mem::take(&mut context.polls) {
            world.kernel.release(description);
        }
        world.kernel.version += 1;
    });
    world::sleep(Wait::Idle(index), u64::MAX);
    Ok(0)
}

/// True if the condition of a sleeper is met: enough events, polls that become events, or the end of the context.
pub fn is_met(kernel: &Kernel, index: usize, least: usize) -> bool {
    let context = &kernel.contexts[index];
    let polls = context.polls.iter();
    let ready = polls.filter(|&&(description, _)| kernel.ready(description) & EPOLLIN != 0).count();
    context.ended || context.events() + ready >= least
}

/// True if a context has no transfer in flight.
pub fn is_idle(kernel: &Kernel, index: usize) -> bool {
    kernel.contexts[index].in_flight == 0
}

/// Posts events for polls of ready descriptions.
pub fn deliver_polls(kernel: &mut Kernel) {
    for index in 0..kernel.contexts.len() {
        let polls = std::mem::take(&mut kernel.contexts[index].polls);
        for (description, data) in polls {
            if kernel.ready(description) & EPOLLIN == 0 {
                kernel.contexts[index].polls.push((description, data));
            } else {
                kernel.release(description);
                kernel.contexts[index].post(data, i64::from(EPOLLIN));
                kernel.version += 1;
            }
        }
    }
}

/// Waits for events. The engine passes an invalid address, and takes events from memory itself.
pub fn get_events(address: usize, least: usize, place: usize, timeout: usize) -> Answer {
    assert!(place.cast_signed() < 0, "events are left where they are");
    let index = index_of(address)?;
    let deadline_ns = deadline(time_at(timeout));
    loop {
        let ended = world(|world| {
            deliver_polls(&mut world.kernel);
            let context = &world.kernel.contexts[index];
            if context.ended {
                return Some(raw::EINVAL);
            }
            (context.events() > 0).then_some(raw::EFAULT)
        });
        if let Some(errno) = ended {
            return Err(errno);
        }
        match world::sleep(Wait::Aio(index, least), deadline_ns) {
            Woken::Ready => {}
            Woken::TimedOut => return Ok(0),
            Woken::Interrupted => return Err(raw::EINTR),
        }
    }
}

pub fn submit(address: usize, count: usize, list: usize) -> Answer {
    let index = index_of(address)?;
    for at in 0..count {
        // SAFETY: reads the caller's array of pointers.
        let command = Command::at(unsafe { *(list as *const usize).add(at) });
        match submit_one(index, &command) {
            Ok(()) => {}
            Err(errno) if at == 0 => return Err(errno),
            Err(_) => return Ok(at),
        }
    }
    Ok(count)
}

fn submit_one(index: usize, command: &Command) -> Result<(), Errno> {
    let held = Held::of(command.fd)?;
    let told = command.tells.map(Held::of).transpose()?;
    let full = world(|world| {
        let context = &mut world.kernel.contexts[index];
        let full = context.in_flight == context.most;
        context.in_flight += usize::from(!full);
        full
    });
    if full {
        return Err(raw::EAGAIN);
    }
    let ends = move |data, result: Answer| {
        world(|world| {
            let result = result.map_or_else(|errno| -i64::from(errno), |done| done as i64);
            world.kernel.contexts[index].post(data, result);
        });
        // Another thread may see the event before.
        world::point();
        world(|world| {
            if let Some(told) = &told {
                world.kernel.add_to_eventfd(told.0, 1);
            }
            world.kernel.version += 1;
        });
    };
    let (data, opcode, offset) = (command.data, command.opcode, command.offset);
    let storage = world(|world| {
        let description = world.kernel.at(held.0);
        match description.object {
            Object::Storage(file) => Some((file, description.flags & O_DIRECT != 0)),
            _ => None,
        }
    });
    match (opcode, storage) {
        (POLL, None) => {
            world(|world| {
                world.kernel.hold(held.0);
                world.kernel.contexts[index].polls.push((held.0, data));
            });
            return Ok(());
        }
        (FSYNC | FDSYNC, Some((file, _))) => {
            let takes = world(|world| world.random.below(world.kernel.files[file].slowness_ns));
            after(takes as u64, move || {
                drop(held);
                ends(data, Ok(0));
            });
        }
        (PREADV | PWRITEV, found) => {
            let writes = opcode == PWRITEV;
            assert!(command.flags & RWF_NOWAIT != 0, "the engine never waits in io_submit");
            // SAFETY: reads a vector of the caller.
            let [base, length] = unsafe { *(command.address as *const [usize; 2]) };
            let Some((file, true)) = found else {
                // The number belongs to another file now.
                let offset = if found.is_some() { offset } else { u64::MAX };
                ends(data, calls::transfer(command.fd, (base, length), offset, command.flags, writes));
                return Ok(());
            };
            match world(|world| world.random.below(8)) {
                0 => ends(data, Err(raw::EAGAIN)),
                chance => {
                    let (takes_ns, length) = world(|world| {
                        let short = chance == 1 && length > 1;
                        let length = if short { 1 + world.random.below(length - 1) } else { length };
                        (if chance < 3 { 0 } else { takes_ns(world, file) }, length)
                    });
                    after(takes_ns, move || {
                        let done = world(|world| world.kernel.transfer(file, offset, base, length, writes));
                        drop(held);
                        ends(data, Ok(done));
                    });
                }
            }
        }
        _ => {
            world(|world| world.kernel.contexts[index].in_flight -= 1);
            return Err(raw::EINVAL);
        }
    }
    Ok(())
}

/// Returns how long the device takes for a transfer.
fn takes_ns(world: &mut World, file: usize) -> u64 {
    let File { slowness_ns, stalls, .. } = world.kernel.files[file];
    if !(stalls && world.random.once_in(2)) {
        return world.random.below(slowness_ns) as u64;
    }
    let takes_ns = (STALL_NS + world.random.below(STALL_NS)) as u64;
    world.kernel.stalls_until_ns = world.kernel.stalls_until_ns.max(world.now_ns() + takes_ns);
    takes_ns
}

/// Calls `end` now, or later in a system thread.
fn after(takes_ns: u64, end: impl FnOnce() + 'static) {
    if takes_ns == 0 {
        return end();
    }
    world::add("device", move || {
        world::sleep_for(takes_ns);
        // The memory exists only while the schedule runs.
        if world::runs() {
            end();
        } else {
            std::mem::forget(end);
        }
    });
}
