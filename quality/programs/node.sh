# Node with UV_USE_IO_URING=1: libuv does file operations and epoll_ctl through rings.
source "$(dirname "$0")/lib.sh"
need node:nodejs

major=$(node -p 'process.versions.node.split(".")[0]')
[ "$major" -ge 20 ] || {
    skip all "node $(node --version) is too old: UV_USE_IO_URING works from Node 20.3 on"
    exit 0
}
export UV_USE_IO_URING=1

files() {
    mkdir files
    ring 90 node "$here/node/files.mjs" "$dir/files" "$1"
    # Each file is opened, read or written, and closed, three times; what finds the ring full goes to libuv's threads.
    engine_active $(($1 * 3))
}

server() {
    mkdir files
    ring 90 node "$here/node/server.mjs" "$dir/files" "$1"
    engine_active $(($1 * 2))
}

if quick; then
    case_run files files 64
    case_run server server 140
else
    case_run files files 600
    case_run server server 2800
    # Rings in worker threads: each has a loop, and so rings, of its own.
    threads() {
        mkdir a b c
        cat >threads.mjs <<-'END'
		import { Worker } from 'node:worker_threads';
		const [script, dir] = process.argv.slice(2);
		const codes = await Promise.all(['a', 'b', 'c'].map((sub) => new Promise((resolve, reject) => {
		  const worker = new Worker(script, { argv: [`${dir}/${sub}`, '64'] });
		  worker.on('error', reject);
		  worker.on('exit', resolve);
		})));
		if (codes.some((code) => code !== 0)) throw new Error(`exit codes ${codes}`);
		END
        ring 90 node threads.mjs "$here/node/files.mjs" "$dir"
        engine_active $((3 * 64 * 3))
    }
    case_run threads threads
    # A server and a client in two processes that are both under anyring.
    children() {
        mkdir x y
        cat >children.mjs <<-'END'
		import { spawn } from 'node:child_process';
		const [script, dir] = process.argv.slice(2);
		const codes = await Promise.all(['x', 'y'].map((sub) => new Promise((resolve, reject) => {
		  const child = spawn(process.execPath, [script, `${dir}/${sub}`, '280'], { stdio: 'inherit' });
		  child.on('error', reject);
		  child.on('exit', resolve);
		})));
		if (codes.some((code) => code !== 0)) throw new Error(`exit codes ${codes}`);
		END
        ring 90 node children.mjs "$here/node/server.mjs" "$dir"
        engine_active $((2 * 280))
    }
    case_run children children
fi
