// Package engine carries out the steps of a change and undoes them when one fails.
//
// It does not record which steps are done: each step's handler reads that from the hardware. So a change that a crash
// interrupted can be resumed in another process. It plans nothing, gives no authority and writes no file.
package engine
