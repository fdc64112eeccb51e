//! Writes a file through a ring of std's, reads it back through the ring, and compares with plain calls.
//! One thread by itself, and several together.
//!
//!   rings DIRECTORY THREADS BLOCKS
const std = @import("std");
const linux = std.os.linux;
const IoUring = linux.IoUring;

const depth = 32;
const block = 4096;

fn all(ring: *IoUring, file: std.fs.File, content: []u8, comptime write: bool) !void {
    const blocks = content.len / block;
    var next: usize = 0;
    var flying: usize = 0;
    while (next < blocks or flying > 0) {
        while (next < blocks and flying < depth) : (next += 1) {
            const part = content[next * block ..][0..block];
            if (write) {
                _ = try ring.write(next, file.handle, part, next * block);
            } else {
                _ = try ring.read(next, file.handle, .{ .buffer = part }, next * block);
            }
            flying += 1;
        }
        _ = try ring.submit_and_wait(1);
        var events: [depth]linux.io_uring_cqe = undefined;
        const count = try ring.copy_cqes(&events, 1);
        for (events[0..count]) |event| {
            if (event.res != block) std.debug.panic("block {}: {}", .{ event.user_data, event.res });
        }
        flying -= count;
    }
}

fn one(directory: std.fs.Dir, index: usize, blocks: usize) !void {
    const memory = std.heap.page_allocator;
    var ring = try IoUring.init(depth, 0);
    defer ring.deinit();
    var name: [32]u8 = undefined;
    const path = try std.fmt.bufPrint(&name, "file{}", .{index});
    const file = try directory.createFile(path, .{ .read = true });
    defer file.close();
    const content = try memory.alloc(u8, blocks * block);
    var random = std.Random.DefaultPrng.init(index);
    random.fill(content);
    try all(&ring, file, content, true);
    const again = try memory.alloc(u8, blocks * block);
    try all(&ring, file, again, false);
    const plain = try directory.readFileAlloc(memory, path, 1 << 30);
    if (!std.mem.eql(u8, content, again) or !std.mem.eql(u8, content, plain)) @panic("not what was written");
}

fn thread(directory: std.fs.Dir, index: usize, blocks: usize) void {
    one(directory, index, blocks) catch |err| std.debug.panic("thread {}: {}", .{ index, err });
}

pub fn main() !void {
    var arguments = std.process.args();
    _ = arguments.next();
    const directory = try std.fs.cwd().openDir(arguments.next().?, .{});
    const threads = try std.fmt.parseInt(usize, arguments.next().?, 10);
    const blocks = try std.fmt.parseInt(usize, arguments.next().?, 10);
    try one(directory, 0, blocks);
    var started: [64]std.Thread = undefined;
    for (started[0..threads], 1..) |*place, index| {
        place.* = try std.Thread.spawn(.{}, thread, .{ directory, index, blocks });
    }
    for (started[0..threads]) |place| place.join();
    try std.io.getStdOut().writer().print("files: {}\n", .{threads + 1});
}
