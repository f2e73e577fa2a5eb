// Package engine carries out the steps of a change and takes them back when one fails.
//
// It keeps no marks of what was done: it asks each step's handler, which reads the hardware. That is how a change that
// was cut short by a crash goes on in another process. It plans nothing, gives no authority and writes no file.
package engine
