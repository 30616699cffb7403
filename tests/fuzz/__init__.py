"""Seeded generators of hostile and random cases, and the tool that runs them: `python -m tests.fuzz --help`.

=============== ==================================================================================================
`graphs`        random valid graphs: every device, onnxruntime, an exported and a written model give equal results
`mutants`       damaged models: reading, compiling and running ends in a result or an `EngineError`
`blobs`         forged blobs with right hashes, and forged native plans: the same, and no memory is left
`seals`         encrypted and signed blobs, forged without a key: refused, or the same result
`load`          many threads, networks, devices and ways to run: right results, and nothing leaks
`interrupts`    Ctrl-C, cancellations and deadlines at random moments: what is interrupted stays usable
`requests`      malformed requests to a server: a status and a class of the SDK, and the server goes on
`serving`       mixed clients of a server, reloads, SIGTERM and SIGKILL: right answers, and nothing accepted is lost
=============== ==================================================================================================

A generator is a module with `run(seed)`: it makes the case of the seed, which is the same every time, and returns the
name of its outcome, or raises `Finding` or any other exception, which is a finding too. `files(seed)` returns what the
case consists of. Cases run in worker processes (`worker`), which `supervisor` restarts after a crash, a hang, or when
one takes too much memory.
"""
