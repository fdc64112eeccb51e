//! The names by which a ring tells the events of its epoll instance apart.

/// The number of events that a driver takes at once.
pub const BATCH: usize = 64;

/// Names the driver's eventfd among epoll events.
pub const KICK: u64 = u64::MAX;

/// Names the eventfd of finished O_DIRECT transfers.
pub const AIO: u64 = u64::MAX - 1;

/// The upper half of the names of the channels of [`crate::feature::zero_copy_send`].
pub const CHANNEL: u32 = u32::MAX - 1;

/// Names a channel among epoll events.
pub fn channel_data(index: usize) -> u64 {
    (u64::from(CHANNEL) << 32) | index as u64
}

/// Names the bell: the eventfd by which other processes report what they did to the ring.
pub const BELL: u64 = u64::MAX - 2;

/// Names the eventfd of `crate::ring::drive::glimpse`.
pub const GLIMPSE: u64 = u64::MAX - 3;
