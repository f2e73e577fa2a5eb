// Package converge is the converge loop: it observes the node, corrects what needs no authority, and reports the rest as
// conditions. It never takes a step that disturbs a lease or a process.
package converge
