// Package names knows the host's users and groups by name and by number. The programs are static and read only files by
// themselves, so it asks getent, which also reaches directories such as LDAP and SSSD. Asking may take as long as the
// directory does and is done aside; reading what is known never waits. It decides nothing about rights.
package names
