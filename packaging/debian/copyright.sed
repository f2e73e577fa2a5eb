# Debian has the text of the Apache licence: a copyright names it instead of repeating it.
/^ *Apache License$/,/^ *END OF TERMS AND CONDITIONS$/ {
	/^ *END OF TERMS AND CONDITIONS$/ i\
Licensed under the Apache License, Version 2.0. On Debian its text is in /usr/share/common-licenses/Apache-2.0.
	d
}
/^ *APPENDIX: How to apply the Apache License to your work\.$/,/^ *limitations under the License\.$/ d
