// An HTTP server on loopback that reads what it serves from files, and clients in the same event loop.
import http from 'node:http';
import fs from 'node:fs';
import { createHash, randomBytes } from 'node:crypto';
import assert from 'node:assert/strict';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';

const [dir, requests] = [process.argv[2], Number(process.argv[3])];
const sha = (data) => createHash('sha256').update(data).digest('hex');
const files = await Promise.all([0, 10, 5000, 100000, 1000000].map(async (size, i) => {
  const data = randomBytes(size);
  await fs.promises.writeFile(path.join(dir, `f${i}`), data);
  return sha(data);
}));

const server = http.createServer(async (request, response) => {
  try {
    if (request.method === 'PUT') {
      await pipeline(request, fs.createWriteStream(path.join(dir, request.url.slice(1))));
      response.end('stored');
    } else {
      const stat = await fs.promises.stat(path.join(dir, request.url.slice(1)));
      response.setHeader('content-length', stat.size);
      await pipeline(fs.createReadStream(path.join(dir, request.url.slice(1))), response);
    }
  } catch (error) {
    response.statusCode = error.code === 'ENOENT' ? 404 : 500;
    response.end(error.message);
  }
});
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const { port } = server.address();
const agent = new http.Agent({ keepAlive: true, maxSockets: 32 });

const ask = (method, name, body) => new Promise((resolve, reject) => {
  const request = http.request({ host: '127.0.0.1', port, method, path: `/${name}`, agent }, (response) => {
    const chunks = [];
    response.on('data', (chunk) => chunks.push(chunk));
    response.on('end', () => resolve({ status: response.statusCode, data: Buffer.concat(chunks) }));
    response.on('error', reject);
  });
  request.on('error', reject);
  request.end(body);
});

await Promise.all(Array.from({ length: requests }, async (_, i) => {
  const which = i % 7;
  if (which < 5) {
    const { status, data } = await ask('GET', `f${which}`);
    assert.equal(status, 200);
    assert.equal(sha(data), files[which], `f${which} of request ${i}`);
  } else if (which === 5) {
    const data = randomBytes(20000 + i);
    assert.equal((await ask('PUT', `put${i}`, data)).status, 200);
    assert.equal(sha((await ask('GET', `put${i}`)).data), sha(data), `put${i}`);
  } else {
    assert.equal((await ask('GET', `absent${i}`)).status, 404);
  }
}));
agent.destroy();
server.close();
console.log(`${requests} requests hold`);
