//! Busy polling: what is told and what is refused.

use crate::common::prelude::*;
use io_uring_register_op as Code;

const NONE: io_uring_napi =
    io_uring_napi { busy_poll_to: 0, prefer_busy_poll: 0, opcode: 0, pad: [0; 2], op_param: 0, resv: 0 };

type Said = (i32, u32, u8, u8, u32);

fn call(ring: &Ring, code: Code, mut napi: io_uring_napi) -> Said {
    let result = ring.register(code, (&raw mut napi).cast(), 1);
    (result, napi.busy_poll_to, napi.prefer_busy_poll, napi.opcode, napi.op_param)
}

fn register(ring: &Ring, napi: io_uring_napi) -> Said {
    call(ring, IORING_REGISTER_NAPI, napi)
}

fn unregister(ring: &Ring) -> Said {
    call(ring, IORING_UNREGISTER_NAPI, NONE)
}

#[by(both_if(has_busy_epoll))]
fn settings_are_told_one_call_later(engine: Engine) -> impl Answer {
    let ring = Ring::new(engine, 4, 0);
    let time = |busy_poll_to: u32| io_uring_napi { busy_poll_to, ..NONE };
    let prefer = |prefer_busy_poll: u8| io_uring_napi { prefer_busy_poll, ..time(50) };
    vec![
        unregister(&ring),
        register(&ring, time(100)),
        register(&ring, prefer(7)),
        register(&ring, time(u32::MAX)),
        register(&ring, time(0)),
        unregister(&ring),
        unregister(&ring),
    ]
}

#[by(both_if(has_busy_epoll))]
fn errors(engine: Engine) -> impl Answer {
    let ring = Ring::new(engine, 4, 0);
    let polled = Ring::new(engine, 4, IORING_SETUP_IOPOLL);
    let mut napi = NONE;
    let argument: *mut c_void = (&raw mut napi).cast();
    let null = std::ptr::null();
    let results = [
        ring.register(IORING_REGISTER_NAPI, argument, 0),
        ring.register(IORING_REGISTER_NAPI, argument, 2),
        ring.register(IORING_REGISTER_NAPI, null, 1),
        ring.register(IORING_REGISTER_NAPI, 0x1000 as *const _, 1),
        ring.register(IORING_UNREGISTER_NAPI, argument, 0),
        ring.register(IORING_UNREGISTER_NAPI, null, 1),
        ring.register(IORING_UNREGISTER_NAPI, 0x1000 as *const _, 1),
        polled.register(IORING_REGISTER_NAPI, argument, 1),
        polled.register(IORING_UNREGISTER_NAPI, argument, 1),
    ];
    let refused = [
        io_uring_napi { pad: [1, 0], ..NONE },
        io_uring_napi { resv: 1, ..NONE },
        io_uring_napi { opcode: 3, ..NONE },
        io_uring_napi { op_param: 2, ..NONE },
        io_uring_napi { opcode: 1, op_param: 90_000, ..NONE },
    ];
    (results, refused.map(|napi| register(&ring, napi)))
}
