#!/usr/bin/env python3
"""TigerBeetle under `anyring chaos --power-cut`: the commands before, during and after the power cut, in the working directory.

    beetle.py setup    makes data.tigerbeetle, whose next checkpoint is near
    beetle.py write    starts the server, commits batches of transfers from several clients, prints each batch that the server has
                       said is committed
    beetle.py check    starts the server again: the batches on standard input must be there, each other one wholly or not at all, and
                       balances must fit

The variable TIGERBEETLE names the server's executable. The client is TigerBeetle's package for Python.
"""

import os
import subprocess
import sys
import threading

import tigerbeetle as tb

SERVER = os.environ.get("TIGERBEETLE", "tigerbeetle")
DATA, PREPARED = "data.tigerbeetle", "prepared.tigerbeetle"
# A checkpoint is made after 960 operations and the 32 that follow; each client and each batch is an operation.
PREPARED_BATCHES = 930
CLIENTS = 3
BATCHES = 40
SIZE = 8
LOOKED_UP = 100
ACCOUNTS = range(1, 5)


class Server:
    """The server on the loopback interface, which chooses its port, and ends when its input is closed."""

    def __enter__(self):
        command = [SERVER, "start", "--addresses=0", "--development", DATA]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
        self.port = self.process.stdout.readline().decode().strip()
        if not self.port:
            sys.exit(f"the server does not start: status {self.process.wait()}")
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def client(self):
        return tb.ClientSync(cluster_id=0, replica_addresses=self.port)


def transfers(client, batch):
    """A batch, of which all or nothing is committed."""
    first = (client << 32) + (batch << 8) + 1
    return [
        tb.Transfer(
            id=first + number,
            debit_account_id=ACCOUNTS[(batch + number) % len(ACCOUNTS)],
            credit_account_id=ACCOUNTS[(batch + number + 1 + client % 3) % len(ACCOUNTS)],
            amount=1 + batch + number,
            ledger=1,
            code=1,
            user_data_64=batch,
            flags=tb.TransferFlags.NONE if number == SIZE - 1 else tb.TransferFlags.LINKED,
        )
        for number in range(SIZE)
    ]


def commit(connection, client, batch):
    results = connection.create_transfers(transfers(client, batch))
    wrong = [result for result in results if result.status != tb.CreateTransferStatus.CREATED]
    if wrong or len(results) != SIZE:
        sys.exit(f"client {client}, batch {batch}: {results}")


def setup():
    if not os.path.exists(PREPARED):
        form = [SERVER, "format", "--cluster=0", "--replica=0", "--replica-count=1", "--development", DATA]
        if os.path.exists(DATA):
            os.remove(DATA)
        subprocess.run(form, check=True)
        with Server() as server, server.client() as connection:
            connection.create_accounts([tb.Account(id=account, ledger=1, code=1) for account in ACCOUNTS])
            for batch in range(PREPARED_BATCHES):
                commit(connection, 0, batch)
        os.rename(DATA, PREPARED)
    subprocess.run(["cp", "--sparse=always", "--reflink=auto", PREPARED, DATA], check=True)
    # What was there before is not lost: neither the copy nor its name.
    subprocess.run(["sync", DATA, "."], check=True)


def write():
    def work(client):
        with server.client() as connection:
            for batch in range(BATCHES):
                commit(connection, client, batch)
                os.write(1, f"{client} {batch}\n".encode())

    with Server() as server:
        threads = [threading.Thread(target=work, args=(client,)) for client in range(1, CLIENTS + 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def check():
    said = {tuple(map(int, line.split())) for line in sys.stdin.read().splitlines(keepends=True) if line.endswith("\n")}
    wrong = []
    balances = {account: [0, 0] for account in ACCOUNTS}
    found = 0
    prepared = {(0, batch) for batch in range(PREPARED_BATCHES)}
    written = {(client, batch) for client in range(1, CLIENTS + 1) for batch in range(BATCHES)}
    batches = sorted(prepared | written)
    with Server() as server, server.client() as connection:
        transfers_there = {}
        for first in range(0, len(batches), LOOKED_UP):
            identities = [transfer.id for batch in batches[first : first + LOOKED_UP] for transfer in transfers(*batch)]
            transfers_there |= {transfer.id: transfer for transfer in connection.lookup_transfers(identities)}
        for client, batch in batches:
            expected = transfers(client, batch)
            there = [transfers_there[transfer.id] for transfer in expected if transfer.id in transfers_there]
            for transfer in there:
                transfer.timestamp = 0
                balances[transfer.debit_account_id][0] += transfer.amount
                balances[transfer.credit_account_id][1] += transfer.amount
            if there == expected:
                found += 1
            elif there:
                wrong.append(f"client {client}, batch {batch}: {len(there)} of {SIZE} transfers, or other ones")
            elif (client, batch) in said | prepared:
                wrong.append(f"client {client}, batch {batch}: committed, and gone")
        accounts = connection.lookup_accounts(list(ACCOUNTS))
    there = {account.id: [account.debits_posted, account.credits_posted] for account in accounts}
    if there != balances:
        wrong.append(f"balances {there}, but transfers make {balances}")
    print("\n".join(wrong) or f"{len(said)} batches said to be committed, {found - len(prepared)} there")
    sys.exit(1 if wrong else 0)


{"setup": setup, "write": write, "check": check}[sys.argv[1]]()
