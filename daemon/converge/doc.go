// Package converge is the loop: it observes the node, corrects what needs no authority, and tells what is not as it should
// be. It never takes a step that disturbs somebody.
package converge
