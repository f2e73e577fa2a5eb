// Package kernellog reads the errors that the driver reports in the kernel's log (XIDs). The events of the vendor's library
// report the same errors, but name no process, and are lost while no worker runs.
//
// It reads only what is written from now on, decides nothing and writes nothing.
package kernellog
