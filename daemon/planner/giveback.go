package planner

// The kinds of step that take back what loops of their own keep as the spec in force says. Those loops do the same, sooner
// or later: the steps are there to be shown, and for whoever waits to know that it is done. What was taken back is made
// again by the next spec, so they have no undo.
const (
	KindCDIRemove = "cdi.remove"    // no arguments
	KindUnlimit   = "logins.remove" // no arguments
)
