#!/bin/bash
# opener.sh ALLOWED DENIED FILE [PAUSE] opens one node and the other, again and again, until FILE.stop is there. What came
# of it goes to FILE as bash says it; FILE.rounds says how often. It makes no process, and pauses (a fifth of a second) so
# that the one processor is not its own.
exec 9<> <(:)
exec 2>>"$3"
rounds=0
while [ ! -e "$3.stop" ]; do
	exec 3<>"$1"
	exec 4<>"$2"
	rounds=$((rounds + 1))
	echo $rounds >"$3.rounds"
	read -rt "${4:-0.2}" -u 9 _
done
exit 0
