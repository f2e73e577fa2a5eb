// Package worker carries the GPU driver port across a process.
//
// A call into the vendor's library can hang in the kernel and cannot be cancelled, and a library that lacks a symbol
// ends the process that calls it. So the library lives in a worker process. Client implements gpu.Driver in the daemon:
// it starts the worker, watches every operation's deadline, abandons a worker that does not answer and starts another
// one without the GPU that did not. Worker.Serve is the other end, in the worker: one locked thread for each GPU.
//
// The package holds no policy on sick GPUs beyond leaving them alone until Retry, knows nothing of NVML and stores
// nothing on disk but its socket.
package worker
