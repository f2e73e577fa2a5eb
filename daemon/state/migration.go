package state

// Denies tells whether moving processes out of leases is to be denied, and not only detected.
func (d *Desired) Denies() bool {
	return d.Spec != nil && d.Spec.Node.Walls != nil && d.Spec.Node.Walls.Migration == "deny"
}
