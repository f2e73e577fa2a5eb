// Package adoption adopts logins, units and containers into leases, as the spec says, and limits the memory of logins.
package adoption
