// Package names knows the host's users and groups by name and by number. The programs are static and can only read files
// themselves, so it runs getent, which also queries directories such as LDAP and SSSD. A query takes as long as the
// directory needs; reading what is known never waits. It decides nothing about rights.
package names
