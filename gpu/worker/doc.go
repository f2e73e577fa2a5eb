// Package worker carries the GPU driver port across a process.
//
// A call into the vendor's library can hang in the kernel and cannot be cancelled, and a library that lacks a symbol ends
// the process that calls it. Therefore the library runs in a worker process. Client implements gpu.Driver in the daemon:
// it starts the worker, enforces the deadline of every operation, abandons a worker that does not answer and starts
// another one without the unresponsive GPU. Worker.Serve is the server in the worker process, with one locked thread for
// each GPU.
//
// The package excludes unresponsive GPUs until Retry and has no other policy about them. It knows nothing about NVML and
// stores nothing on disk except its socket.
package worker
