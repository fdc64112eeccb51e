// Many files through fs.promises: written, read back, stat'ed, renamed, removed, and their checksums compared.
// With UV_USE_IO_URING=1 libuv puts these calls on a ring of its own.
import fs from 'node:fs/promises';
import { constants } from 'node:fs';
import { createHash, randomBytes } from 'node:crypto';
import assert from 'node:assert/strict';
import path from 'node:path';

const [dir, count] = [process.argv[2], Number(process.argv[3])];
const sha = (data) => createHash('sha256').update(data).digest('hex');
const name = (i) => path.join(dir, `file-${i}`);
// Sizes around the page size and the chunk sizes that readFile uses, an empty file too.
const size = (i) => [0, 1, 4095, 4096, 4097, 65536, 70000, 524288 + 13][i % 8] + (i % 8 ? i : 0);

const sums = await Promise.all(Array.from({ length: count }, async (_, i) => {
  const data = randomBytes(size(i));
  await fs.writeFile(name(i), data);
  return sha(data);
}));

await Promise.all(sums.map(async (sum, i) => {
  assert.equal((await fs.stat(name(i))).size, size(i), `size of ${name(i)}`);
  assert.equal((await fs.lstat(name(i))).isFile(), true);
  assert.equal(sha(await fs.readFile(name(i))), sum, `contents of ${name(i)}`);
}));

// One open file: positioned and sequential writes and reads, fsync, ftruncate, fstat.
const file = await fs.open(path.join(dir, 'open'), 'w+');
const block = (i) => Buffer.alloc(4096, i & 255);
await Promise.all(Array.from({ length: 64 }, (_, i) => file.write(block(i), 0, 4096, i * 4096)));
await file.datasync();
await file.sync();
await Promise.all(Array.from({ length: 64 }, async (_, i) => {
  const { bytesRead, buffer } = await file.read(Buffer.alloc(4096), 0, 4096, i * 4096);
  assert.equal(bytesRead, 4096);
  assert.ok(buffer.equals(block(i)), `block ${i}`);
}));
const { bytesWritten } = await file.writev([block(1), Buffer.from('odd'), block(2)], 64 * 4096);
assert.equal(bytesWritten, 8195);
assert.equal((await file.stat()).size, 64 * 4096 + 8195);
// The file's own position: still at the start, and it moves with each read.
for (let i = 0; i < 3; i++) {
  const { bytesRead, buffer } = await file.read(Buffer.alloc(4096), 0, 4096, null);
  assert.equal(bytesRead, 4096);
  assert.ok(buffer.equals(block(i)), `sequential block ${i}`);
}
await file.truncate(10);
assert.equal((await file.stat()).size, 10);
assert.equal((await file.read(Buffer.alloc(10), 0, 10, 10)).bytesRead, 0, 'end of file');
await file.close();

// Errors must be the system's own.
await assert.rejects(fs.stat(path.join(dir, 'absent')), { code: 'ENOENT' });
await assert.rejects(fs.readFile(path.join(dir, 'absent')), { code: 'ENOENT' });
await assert.rejects(fs.open(path.join(dir, 'absent', 'x')), { code: 'ENOENT' });
await assert.rejects(fs.open(path.join(name(1), 'x')), { code: 'ENOTDIR' });
await assert.rejects(fs.readFile(dir), { code: 'EISDIR' });
await assert.rejects(fs.mkdir(dir), { code: 'EEXIST' });
await assert.rejects(fs.open(name(1), constants.O_CREAT | constants.O_EXCL | constants.O_RDWR), { code: 'EEXIST' });

// Names.
await fs.mkdir(path.join(dir, 'sub'));
await fs.symlink('../file-3', path.join(dir, 'sub', 'soft'));
await fs.link(name(3), path.join(dir, 'sub', 'hard'));
assert.equal((await fs.stat(path.join(dir, 'sub', 'hard'))).nlink, 2);
assert.equal((await fs.lstat(path.join(dir, 'sub', 'soft'))).isSymbolicLink(), true);
assert.equal(sha(await fs.readFile(path.join(dir, 'sub', 'soft'))), sums[3]);
await Promise.all(sums.map((_, i) => fs.rename(name(i), path.join(dir, 'sub', `moved-${i}`))));
await Promise.all(sums.map(async (sum, i) => {
  assert.equal(sha(await fs.readFile(path.join(dir, 'sub', `moved-${i}`))), sum, `contents of moved-${i}`);
}));
await Promise.all(sums.map((_, i) => fs.unlink(path.join(dir, 'sub', `moved-${i}`))));
assert.deepEqual((await fs.readdir(path.join(dir, 'sub'))).sort(), ['hard', 'soft']);
console.log(`${count} files hold`);
