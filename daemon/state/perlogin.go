package state

// Limits tells whether a tenant's logins have a limit.
func (d *Desired) Limits(tenant string) bool {
	t, ok := d.Tenant(tenant)
	return ok && d.Enforcing() && t.PerLogin != nil && t.PerLogin.Memory != nil
}
