package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
	"github.com/gpushare/gpushare/internal/version"
	"github.com/gpushare/gpushare/test/golden"
)

// The files that texts are compared with have no version: it is written in one place.
func init() { version.Version = "dev" }

// TestTexts compares everything that a person sees with testdata/NAME.txt. -update writes them: then read the difference.
func TestTexts(t *testing.T) {
	manyConditions := emptyNode()
	for i := range 20 {
		manyConditions.Node.Conditions = append(
			manyConditions.Node.Conditions,
			api.Condition{Kind: "unknown-member", Message: fmt.Sprintf("this host does not know user u%d", i), Hint: "correct the name"},
		)
	}
	observing := labNode()
	observing.Node.Enforce, observing.Node.Operation, observing.Node.Conditions, observing.Leases, observing.Tenants = "observe", "", nil, nil, nil
	observing.GPUs = observing.GPUs[2:3]

	released := emptyNode()
	released.Node.Generation, released.Node.Unmanaged = 8, &api.Unmanaged{By: "root", At: noon, All: true}

	failed := &api.Error{
		Kind:    api.KindDegraded,
		Message: "GPU 10 is held: MPS does not start",
		Hint:    "correct the cause, then 'gpushare gpu retry 10'",
	}
	infeasible := &api.Error{Kind: api.KindInfeasible, Message: "4 × 3g.20gb cannot fit on GPU 0", Hint: "2 × 3g.20gb fit"}
	spoilt := &api.Error{
		Kind:    api.KindInvalid,
		Message: "node.yaml:3:5: gpus[0].mode: \"migg\" is an invalid mode (and one more mistake)",
		Hint:    "nothing was changed",
		Fields: []api.FieldError{
			{
				File:    "node.yaml",
				Line:    3,
				Column:  5,
				Path:    "gpus[0].mode",
				Message: "\"migg\" is an invalid mode",
				Hint:    "did you mean mig?",
			},
			{
				File:    "node.yaml",
				Line:    9,
				Column:  7,
				Path:    "tenants[0].grants[1].timeslice.share",
				Message: "\"40\" has no percent sign: write 40%",
			},
		},
	}
	one := &api.Error{Kind: api.KindInvalid, Message: spoilt.Fields[0].Error(), Hint: "nothing was changed", Fields: spoilt.Fields[:1]}
	hundred := &api.Error{Kind: api.KindInvalid, Message: spoilt.Fields[0].Error() + " (and 400 more mistakes)", Fields: spoilt.Fields}
	stale := &api.Error{
		Kind:    api.KindConflict,
		Message: "cannot apply the spec: it was edited from generation 6, and generation 7 is in force, by alice at 2026-03-02T12:00:00Z; 43 lines of what others changed since would be lost",
		Hint:    "make your change there",
		Stale: &api.StaleSpec{
			Base:       6,
			Generation: 7,
			By:         "alice",
			At:         noon,
			Lost:       []string{"-     tasks: 7", "+     tasks: 9"},
			More:       41,
		},
	}
	checked := func(p api.Plan, changed bool) routes {
		return routes{"PUT /v1/spec": api.ApplyResult{Generation: 8, Checked: true, Changed: changed, Plan: p}, "GET /v1/status": labNode()}
	}
	withDiff := labPlan()
	withDiff.Diff = &api.Diff{Before: "version: v1\ntenants:\n- name: red\n", After: "version: v1\ntenants:\n- name: blue\n"}
	notDone := labPlan()
	notDone.Observe, notDone.Disturbs, notDone.Warnings = true, nil, nil
	one1 := api.Plan{SchemaVersion: 1, Generation: 8, Steps: labPlan().Steps[3:4]}
	one1.Steps[0].Text = "create the cgroup slice of vision"
	outOfReach := api.Unreachable{
		GPU:    gpu1,
		Reason: "GPU 1: 7g.40gb at 0 is not managed by gpushare",
		Hint:   "'gpushare mig remove 1 0' removes what gpushare does not manage",
	}
	waits := operation("failed", &api.Error{Kind: api.KindInUse, Message: "a process does not end"})
	waits[1].Plan.Steps[4].State, waits[1].Plan.Steps[4].WaitsFor = "doing", "pid 4711 (python) was killed and has not exited: it is traced by pid 4712 (gdb) of root, which is not stopped: it belongs to root"
	retried := operation("done", nil)
	for _, o := range retried {
		o.Kind = "retry"
	}

	const listing = "GPU 0: NVIDIA H20 (UUID: GPU-1)\n" +
		"|   0  MIG 1g.12gb        19     7/7        11.75      No     10     1     0   |\n" +
		"|                                                             1     1     0   |\n" +
		"GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1\n"
	for name, c := range map[string]struct {
		routes routes
		stdin  string
		args   string
	}{
		"status":                   {routes{"GET /v1/status": labNode()}, "", "status"},
		"status-wide":              {routes{"GET /v1/status": labNode()}, "", "status -o wide"},
		"status-mine":              {routes{"GET /v1/status": labNode(), "GET /v1": api.Info{Caller: api.Caller{UID: 4}}}, "", "status --mine"},
		"status-acknowledged":      {routes{"GET /v1/status": acknowledgedNode()}, "", "status --exit-code"},
		"condition-list":           {routes{"GET /v1/status": acknowledgedNode()}, "", "condition list"},
		"condition-list-empty":     {routes{"GET /v1/status": emptyNode()}, "", "condition list"},
		"condition-ack":            {routes{"POST /v1/conditions/held-3f9a21c0/ack": acknowledgedResult(true)}, "", "condition ack held-3f9a21c0 --for 2h --reason today"},
		"condition-ack-for":        {nil, "", "condition ack held-3f9a21c0 --for tomorrow"},
		"condition-unack":          {routes{"POST /v1/conditions/held-3f9a21c0/unack": acknowledgedResult(false)}, "", "condition unack held-3f9a21c0"},
		"doctor-acknowledged":      {routes{"GET /v1/doctor": acknowledgedDoctor()}, "", "doctor"},
		"status-empty":             {routes{"GET /v1/status": emptyNode()}, "", "status"},
		"status-observing":         {routes{"GET /v1/status": observing}, "", "status"},
		"status-many-conditions":   {routes{"GET /v1/status": manyConditions}, "", "status --exit-code"},
		"gpu-list":                 {routes{"GET /v1/status": labNode()}, "", "gpu list"},
		"gpu-list-empty":           {routes{"GET /v1/status": emptyNode()}, "", "gpu list"},
		"mig-list":                 {routes{"GET /v1/status": labNode()}, "", "mig list"},
		"mig-list-empty":           {routes{"GET /v1/status": emptyNode()}, "", "mig list"},
		"mig-profiles-of-the-node": {routes{"GET /v1/mig": labMIG()}, "", "mig profiles"},
		"mig-profiles-of-no-gpu":   {routes{"GET /v1/mig": api.MIGList{}}, "", "mig profiles"},
		"mig-plan-gpu":             {routes{"GET /v1/mig": labMIG()}, "", "mig plan --gpu 0 --want 3g.20gb,1c.3g.20gb,2c.3g.20gb"},
		"mig-plan-unknown-gpu":     {routes{"GET /v1/mig": labMIG()}, "", "mig plan --gpu 7 --want 3g.20gb"},
		"mig-plan-silent-gpu":      {routes{"GET /v1/mig": labMIG()}, "", "mig plan --gpu 1 --want 3g.20gb"},
		"mig-plan-mode":            {routes{"GET /v1/mig": labMIG()}, "", "mig plan --gpu 2 --want 4g.24gb"},
		"mig-plan-both":            {nil, "", "mig plan --gpu 1 --offline --want 3g.20gb"},
		"mig-frag":                 {routes{"GET /v1/mig": labMIG()}, "", "mig frag"},
		"mig-frag-none":            {routes{"GET /v1/mig": api.MIGList{}}, "", "mig frag"},
		"mig-frag-full":            {nil, "", "mig frag --offline --model a30 --have 4g.24gb@0"},
		"mig-export":               {routes{"GET /v1/mig": labMIG()}, "", "mig export"},
		"mig-profiles-from":        {nil, listing, "mig profiles --from -"},
		"mig-profiles-from-json":   {nil, listing, "mig profiles --from - --json"},
		"mig-profiles-from-wrong":  {nil, "GPU 0: NVIDIA H20 (UUID: GPU-1)\n", "mig profiles --from -"},
		"mig-profiles-no-file":     {nil, "", "mig profiles --model ./no-such-board.yaml"},
		"mig-convert-mig-off":      {nil, partedFile(t), "mig convert - --label off --mig-off exclusive"},
		"mig-convert-mig-on":       {nil, partedFile(t), "mig convert - --label off --mig-off mig"},
		"mig-convert":              {nil, partedFile(t), "mig convert -"},
		"mig-convert-label":        {nil, partedFile(t), "mig convert - --label by-board"},
		"mig-convert-unknown":      {nil, partedFile(t), "mig convert - --label by-boar"},
		"mig-convert-no-file":      {nil, "", "mig convert no-such-file.yaml"},
		"mig-convert-wrong":        {nil, "version: v1\n", "mig convert -"},
		"mig-profiles":             {nil, "", "mig profiles --model b200"},
		"mig-boards":               {nil, "", "mig profiles --offline"},
		"mig-plan":                 {nil, "", "mig plan --offline --model a100-40 --have 3g.20gb@4!,1g.5gb@0 --want 3g.20gb,1g.5gb,1g.5gb"},
		"mig-plan-nothing":         {nil, "", "mig plan --offline --model A30-24GB --have 4g.24gb@0 --want 4g.24gb"},
		"mig-plan-force":           {nil, "", "mig plan --offline --model a100-40 --have 1g.5gb@6!,2g.10gb@0 --want 3g.20gb*2 --force"},
		"mig-plan-shared":          {nil, "", "mig plan --offline --model h100-80 --have 1c.3g.40gb@4! --want 1c.3g.40gb*2 --json"},
		"mig-plan-compute":         {nil, "", "mig plan --offline --model h100-80 --have 1c.3g.40gb@4!,3g.40gb@0 --want 1c.3g.40gb*2,2g.20gb"},
		"mig-plan-attributes":      {nil, "", "mig plan --offline --model rtx-pro-6000 --want 1g.24gb+me.all,1g.24gb-me*3"},
		"mig-plan-infeasible":      {nil, "", "mig plan --offline --model a100-40 --have 1g.5gb@6!,2g.10gb@0 --want 3g.20gb*2"},
		"mig-plan-too-much":        {nil, "", "mig plan --offline --model a100-40 --have 3g.20gb@4 --want 4g.20gb,3g.20gb,1g.5gb --json"},
		"mig-plan-other-board":     {nil, "", "mig plan --offline --model a100-40 --want 4g.40gb,1g.5gb"},
		"mig-plan-no-board":        {nil, "", "mig plan --offline --model a100-41 --want 4g.40gb"},
		"mig-plan-no-model":        {nil, "", "mig plan --offline --want 4g.40gb"},
		"mig-plan-no-start":        {nil, "", "mig plan --offline --model a30 --have 1g.6gb --want 1g.6gb"},
		"mig-plan-bad-start":       {nil, "", "mig plan --offline --model a30 --have 2g.12gb@1 --want 1g.6gb"},
		"mig-plan-overlap":         {nil, "", "mig plan --offline --model a30 --have 2g.12gb@0,1g.6gb@1 --want 1g.6gb"},
		"mig-plan-no-want":         {nil, "", "mig plan --offline --model a30"},
		"mig-plan-not-offline":     {nil, "", "mig plan --model a30 --want 1g.6gb"},
		"mig-plan-batch":           {nil, "{\"model\":\"a30\",\"have\":\"1g.6gb@0\",\"want\":[\"2g.12gb\"]}\n\nx\n{\"model\":\"a30\",\"have\":[{\"profile\":\"1g.6gb\",\"start\":3,\"pinned\":true}],\"want\":\"4g.24gb\",\"force\":true}\n{\"model\":\"a30\",\"want\":[{\"slices\":1,\"memory\":\">=5GiB\",\"attributes\":[\"me\"]}]}\n", "mig plan --offline --batch -"},
		"gpu-show":                 {routes{"GET /v1/status": cordonedNode()}, "", "gpu show 1"},
		"gpu-show-closed":          {routes{"GET /v1/status": closedNode()}, "", "gpu show 1"},
		"status-closed":            {routes{"GET /v1/status": closedNode()}, "", "status"},
		"gpu-show-sensors":         {routes{"GET /v1/status": sensedNode()}, "", "gpu show 1"},
		"gpu-show-few-sensors":     {routes{"GET /v1/status": sensedNode()}, "", "gpu show 0"},
		"gpu-show-unknown":         {routes{"GET /v1/status": labNode()}, "", "gpu show 99"},
		"maintenance-none":         {routes{"GET /v1/maintenance": api.MaintenanceResult{SchemaVersion: 1}}, "", "maintenance"},
		"maintenance-off":          {routes{"POST /v1/maintenance/off": api.MaintenanceResult{SchemaVersion: 1, Changed: true, Replaced: &api.ReplacedDriver{Before: "580.95.05", After: "580.105.08", Missing: []string{gpu1}, Added: []string{gpu0}}}}, "", "maintenance off"},
		"maintenance-off-same":     {routes{"POST /v1/maintenance/off": api.MaintenanceResult{SchemaVersion: 1, Changed: true, Replaced: &api.ReplacedDriver{Before: "580.95.05", After: "580.95.05"}}}, "", "maintenance off"},
		"maintenance-off-not":      {routes{"POST /v1/maintenance/off": api.MaintenanceResult{SchemaVersion: 1}}, "", "maintenance off"},
		"gpu-cordon":               {routes{"POST /v1/gpus/1/cordon": api.CordonResult{SchemaVersion: 1, GPU: gpu1, Index: 1, Changed: true, Cordoned: &api.Cordon{By: "root", Since: noon}, Leases: []string{"speech-1"}}}, "", "gpu cordon 1 --reason fan"},
		"gpu-uncordon":             {routes{"POST /v1/gpus/1/uncordon": api.CordonResult{SchemaVersion: 1, GPU: gpu1, Index: 1, Changed: true}}, "", "gpu uncordon 1"},
		"gpu-uncordon-not":         {routes{"POST /v1/gpus/1/uncordon": api.CordonResult{SchemaVersion: 1, GPU: gpu1, Index: 1}}, "", "gpu uncordon 1"},
		"mps-list":                 {routes{"GET /v1/status": labNode()}, "", "mps list"},
		"mps-list-empty":           {routes{"GET /v1/status": emptyNode()}, "", "mps list"},
		"mps-show":                 {routes{"GET /v1/mps/1": labMPS()}, "", "mps show 1"},
		"mps-show-down":            {routes{"GET /v1/mps/10": api.MPSDetail{SchemaVersion: 1, GPU: gpu10, Index: 10, MPSStatus: api.MPSStatus{State: "restarting", Bypass: "deny", Restarts: 3, Reason: "its unit ended: killed by signal 9", Drained: &api.MPSDrain{By: "root", Since: noon}}, Retry: ptr(noon.Add(time.Second))}}, "", "mps show 10"},
		"mps-log":                  {routes{"GET /v1/mps/1/log": api.MPSLog{SchemaVersion: 1, GPU: gpu1, Lines: []string{"[2026-11-22 12:00:00.000 Control 28415] NEW SERVER 28420: Ready", "\x1b[2J"}}}, "", "mps log 1"},
		"mps-log-empty":            {routes{"GET /v1/mps/1/log": api.MPSLog{SchemaVersion: 1, GPU: gpu1}}, "", "mps log 1"},
		"mps-restart-check":        {routes{"POST /v1/mps/1/restart": api.ApplyResult{Generation: 7, Checked: true, Changed: true, Plan: mpsRestart()}, "GET /v1/status": labNode()}, "", "mps restart 1 --check"},
		"mps-restart-in-use":       {routes{"POST /v1/mps/1/restart": &api.Error{Kind: api.KindInUse, Message: "this would disturb pid 2 (lease speech-1): restart MPS, because an administrator requests it", Hint: "nothing was changed; wait until they end, or 'gpushare mps restart 1 --force' terminates them"}}, "", "mps restart 1"},
		"mps-drain":                {routes{"POST /v1/mps/1/drain": api.MPSDrainResult{SchemaVersion: 1, GPU: gpu1, Changed: true, Drained: &api.MPSDrain{By: "root", Since: noon}, Leases: []string{"speech-1"}}}, "", "mps drain 1"},
		"mps-resume":               {routes{"POST /v1/mps/1/resume": api.MPSDrainResult{SchemaVersion: 1, GPU: gpu1, Changed: true, Leases: []string{"speech-1"}}}, "", "mps resume 1"},
		"tenant-list":              {routes{"GET /v1/status": labNode()}, "", "tenant list"},
		"tenant-list-empty":        {routes{"GET /v1/status": emptyNode()}, "", "tenant list"},
		"tenant-show":              {routes{"GET /v1/status": labNode()}, "", "tenant show vision"},
		"tenant-show-no-limits":    {routes{"GET /v1/status": labNode()}, "", "tenant show geology"},
		"tenant-show-unknown":      {routes{"GET /v1/status": labNode()}, "", "tenant show green"},
		"idle":                     {routes{"GET /v1/idle": labIdle()}, "", "idle"},
		"idle-long":                {routes{"GET /v1/idle": labIdle()}, "", "idle --for 30d"},
		"idle-json":                {routes{"GET /v1/idle": labIdle()}, "", "idle --json"},
		"idle-none":                {routes{"GET /v1/idle": api.Idle{SchemaVersion: 1, At: noon}}, "", "idle"},
		"lease-list-sort":          {routes{"GET /v1/status": labNode()}, "", "lease list --sort idle -o name"},
		"lease-list":               {routes{"GET /v1/status": labNode()}, "", "lease list"},
		"lease-list-times":         {routes{"GET /v1/status": timesNode()}, "", "lease list"},
		"lease-show-in-way":        {routes{"GET /v1/status": timesNode()}, "", "lease show vision-zzzz"},
		"lease-list-empty":         {routes{"GET /v1/status": emptyNode()}, "", "lease list"},
		"lease-list-name":          {routes{"GET /v1/status": labNode()}, "", "lease list -o name"},
		"lease-list-name-empty":    {routes{"GET /v1/status": emptyNode()}, "", "lease list -o name"},
		"lease-list-wide":          {routes{"GET /v1/status": labNode()}, "", "lease list -o wide"},
		"lease-show":               {routes{"GET /v1/status": labNode()}, "", "lease show vision-3kq6"},
		"lease-show-frozen":        {routes{"GET /v1/status": pausedNode()}, "", "lease show vision-3kq6"},
		"lease-show-share":         {routes{"GET /v1/status": serviceNode()}, "", "lease show vision-k8qg"},
		"lease-show-queued":        {routes{"GET /v1/status": labNode()}, "", "lease show vision-zzzz"},
		"lease-show-unknown":       {routes{"GET /v1/status": labNode(), "GET /v1/leases": endedLeases()}, "", "lease show green-1"},
		"lease-show-ended":         {routes{"GET /v1/status": labNode(), "GET /v1/leases": endedLeases()}, "", "lease show vision-77aa"},
		"lease-list-since":         {routes{"GET /v1/leases": accountedLeases()}, "", "lease list --since 1d"},
		"lease-show-accounted":     {routes{"GET /v1/status": labNode(), "GET /v1/leases": accountedLeases()}, "", "lease show vision-train-m2n4"},
		"metrics":                  {routes{"GET /metrics": printing("# HELP gpushare_spec_generation The generation of the spec in force, 0 without a spec.\n# TYPE gpushare_spec_generation gauge\ngpushare_spec_generation 7\n")}, "", "metrics"},
		"metrics-json":             {routes{}, "", "metrics --json"},
		"metrics-name":             {routes{}, "", "metrics --textfile /tmp/gpushare.txt"},
		"usage":                    {routes{"GET /v1/usage": labUsage()}, "", "usage --since 7d --by tenant,user"},
		"usage-month":              {routes{"GET /v1/usage": labMonth()}, "", "usage --month 2025-02"},
		"usage-month-md":           {routes{"GET /v1/usage": labMonth()}, "", "usage --month 2025-02 -o md"},
		"usage-month-csv":          {routes{"GET /v1/usage": labMonth()}, "", "usage --month 2025-02 -o csv"},
		"usage-month-later":        {nil, "", "usage --month 2025-04"},
		"usage-month-what":         {nil, "", "usage --month 2025-2"},
		"usage-month-since":        {nil, "", "usage --month 2025-02 --since 7d"},
		"usage-output-what":        {nil, "", "usage -o pdf"},
		"usage-output-both":        {nil, "", "usage -o md --json"},
		"usage-csv":                {routes{"GET /v1/usage": labUsage()}, "", "usage --by user,tenant --csv"},
		"usage-json":               {routes{"GET /v1/usage": labUsage()}, "", "usage --json"},
		"usage-both":               {nil, "", "usage --json --csv"},
		"usage-plot":               {routes{"GET /v1/usage": labWeek()}, "", "usage --plot"},
		"usage-plot-empty":         {routes{"GET /v1/usage": api.Usage{SchemaVersion: 1, Since: noon.Add(-7 * 24 * time.Hour), Until: noon, StepSeconds: 3600, Steps: []api.UsageStep{{Since: noon.Add(-7 * 24 * time.Hour)}}}}, "", "usage --plot -"},
		"usage-plot-unmeasured":    {routes{"GET /v1/usage": unmeasuredDay()}, "", "usage --plot --since 1d"},
		"usage-plot-what":          {nil, "", "usage --plot week.pdf"},
		"usage-plot-json":          {nil, "", "usage --plot --json"},
		"usage-plot-two":           {nil, "", "usage --plot a.svg b.svg"},
		"usage-step":               {nil, "", "usage --step 1h"},
		"usage-empty":              {routes{"GET /v1/usage": api.Usage{Since: noon, Until: noon}}, "", "usage --by \"\""},
		"lease-list-all":           {routes{"GET /v1/status": labNode(), "GET /v1/leases": endedLeases()}, "", "lease list --all"},
		"lease-logs":               {routes{"GET /v1/leases/vision-77aa/logs": printing("epoch 1\nepoch 2\n")}, "", "lease logs vision-77aa"},
		"lease-stop":               {routes{"DELETE /v1/leases/vision-3kq6": struct{}{}}, "", "lease stop vision-3kq6"},
		"lease-stop-several":       {routes{"DELETE /v1/leases/a-1": struct{}{}, "DELETE /v1/leases/a-2": &api.Error{Kind: api.KindNotFound, Message: "there is no lease \"a-2\" that you may stop", Hint: "see 'gpushare lease list'"}, "DELETE /v1/leases/a-3": struct{}{}}, "", "lease stop a-1 a-2 a-3"},
		"lease-stop-in-order":      {routes{"DELETE /v1/leases/a-1": notHere("a-1"), "DELETE /v1/leases/a-2": notHere("a-2"), "DELETE /v1/leases/a-3": notHere("a-3")}, "", "lease stop a-1 a-2 a-3"},
		"lease-stop-json":          {routes{"DELETE /v1/leases/a-1": struct{}{}, "DELETE /v1/leases/a-2": struct{}{}}, "", "lease stop a-1 a-2 --json"},
		"lease-stop-tenant":        {routes{"GET /v1/status": labNode(), "GET /v1": api.Info{Caller: api.Caller{Role: "admin"}}, "DELETE /v1/leases/vision-3kq6": struct{}{}, "DELETE /v1/leases/vision-k8qg": struct{}{}}, "", "lease stop --tenant vision --yes"},
		"lease-stop-own":           {routes{"GET /v1/status": labNode(), "GET /v1": api.Info{Caller: api.Caller{UID: 4, Role: "member"}}}, "", "lease stop --all --yes"},
		"lease-stop-no-terminal":   {routes{"GET /v1/status": labNode(), "GET /v1": api.Info{Caller: api.Caller{Role: "admin"}}}, "", "lease stop --all"},
		"lease-stop-nothing":       {nil, "", "lease stop"},
		"lease-stop-both":          {nil, "", "lease stop vision-3kq6 --all"},
		"lease-attach":             {routes{"POST /v1/leases/attach": attached()}, "", "lease attach --pid 4711 -t vision --grant dev -- notebook"},
		"lease-attach-export":      {routes{"POST /v1/leases/attach": attached()}, "", "lease attach --pid 4711 --export"},
		"lease-attach-what":        {nil, "", "lease attach --pid 4711 --unit cron"},
		"lease-release":            {routes{"POST /v1/leases/vision-3kq6/release": struct{}{}}, "", "lease release vision-3kq6"},
		"lease-release-ended":      {routes{"POST /v1/leases/vision-gone/release": &api.Error{Kind: api.KindNotFound, Message: "there is no lease \"vision-gone\" that you may release", Hint: "see 'gpushare lease list'"}, "GET /v1/leases": api.LeaseList{Leases: labNode().Leases}}, "", "lease release vision-gone"},
		"plan":                     {routes{"GET /v1/plan": labPlan(), "GET /v1/status": labNode()}, "", "plan"},
		"plan-empty":               {routes{"GET /v1/plan": api.Plan{SchemaVersion: 1, Empty: true}}, "", "plan --exit-code"},
		"plan-unreachable":         {routes{"GET /v1/plan": api.Plan{SchemaVersion: 1, Empty: true, Warnings: []string{outOfReach.Reason}, Unreachable: []api.Unreachable{outOfReach}}}, "", "plan --exit-code"},
		"plan-one-step":            {routes{"GET /v1/plan": one1}, "", "plan --exit-code"},
		"plan-observing":           {routes{"GET /v1/plan": notDone, "GET /v1/status": labNode()}, "", "plan"},
		"plan-without-numbers":     {routes{"GET /v1/plan": labPlan(), "GET /v1/status": &api.Error{Kind: api.KindDenied, Message: "you may not"}}, "", "plan"},
		"plan-of-a-file":           {checked(labPlan(), true), "version: v1\n", "plan -f -"},
		"apply":                    {applying(operation("done", nil)), "version: v1\n", "apply -f -"},
		"apply-held":               {applying(operation("degraded", failed)), "version: v1\n", "apply -f -"},
		"apply-failed":             {applying(operation("failed", &api.Error{Kind: api.KindInUse, Message: "a process came back"})), "version: v1\n", "apply -f -"},
		"apply-waits":              {applying(waits), "version: v1\n", "apply -f -"},
		"apply-no-wait":            {applying(operation("done", nil)), "version: v1\n", "apply -f - --no-wait"},
		"apply-check-diff":         {checked(withDiff, true), "version: v1\n", "apply -f - --check --diff"},
		"apply-no-changes":         {checked(api.Plan{Empty: true}, false), "version: v1\n", "apply -f -"},
		"apply-only-the-spec":      {checked(api.Plan{Empty: true}, true), "version: v1\n", "apply -f - --check"},
		"history":                  {routes{"GET /v1/history": labHistory()}, "", "history"},
		"history-json":             {routes{"GET /v1/history": labHistory()}, "", "history --json"},
		"history-empty":            {routes{"GET /v1/history": api.SpecHistory{SchemaVersion: 1}}, "", "history"},
		"history-one":              {routes{"GET /v1/history/7": labRevision(7, "mps"), "GET /v1/history/6": labRevision(6, "timeslice")}, "", "history 7"},
		"history-oldest":           {routes{"GET /v1/history/5": &api.Error{Kind: api.KindNotFound, Message: "generation \"5\" is not kept"}, "GET /v1/history/6": labRevision(6, "timeslice")}, "", "history 6"},
		"history-yaml":             {routes{"GET /v1/history/7": labRevision(7, "mps")}, "", "history 7 --yaml"},
		"history-yaml-of-what":     {nil, "", "history --yaml"},
		"history-word":             {nil, "", "history latest"},
		"history-two":              {nil, "", "history 6 7"},
		"rollback":                 {rollingBack("6", "8"), "", "rollback"},
		"rollback-to":              {rollingBack("5", "8"), "", "rollback 5"},
		"rollback-if":              {rollingBack("5", "3"), "", "rollback 5 --if-generation 3 --dry-run"},
		"rollback-nothing":         {routes{"GET /v1/history": api.SpecHistory{SchemaVersion: 1, Revisions: labHistory().Revisions[3:]}}, "", "rollback"},
		"rollback-unknown":         {routes{"GET /v1/history": labHistory(), "GET /v1/history/4": &api.Error{Kind: api.KindNotFound, Message: "generation \"4\" is not kept", Hint: "'gpushare history' lists those that are: 5 to 8"}}, "", "rollback 4"},
		"operation-list":           {routes{"GET /v1/operations": labOperations()}, "", "operation list"},
		"operation-list-json":      {routes{"GET /v1/operations": labOperations()}, "", "operation list --json"},
		"operation-list-empty":     {routes{"GET /v1/operations": api.OperationList{SchemaVersion: 1}}, "", "operation list"},
		"operation-show":           {routes{"GET /v1/operations/op-13": operation("degraded", failed)[2], "GET /v1/status": labNode()}, "", "operation show op-13"},
		"operation-show-running":   {routes{"GET /v1/operations/op-13": operation("done", nil)[1], "GET /v1/status": labNode()}, "", "operation show op-13"},
		"operation-show-unknown":   {routes{"GET /v1/operations/op-14": &api.Error{Kind: api.KindNotFound, Message: "there is no operation \"op-14\"", Hint: "'gpushare operation list' shows those that are kept"}, "GET /v1/operations": labOperations()}, "", "operation show op-14"},
		"operation-wait":           {applying(operation("done", nil)), "", "operation wait op-13"},
		"operation-wait-held":      {applying(operation("degraded", failed)), "", "operation wait op-13 --timeout 1h"},
		"operation-wait-json":      {applying(operation("degraded", failed)), "", "operation wait op-13 --json"},
		"operation-wait-what":      {nil, "", "operation wait"},
		"operation-wait-two":       {nil, "", "operation wait op-13 op-14"},
		"operation-wait-no-time":   {nil, "", "operation wait op-13 --timeout soon"},
		"events-repeated":          {routes{"GET /v1/events": emitting(repeatedEvents()...)}, "", "events"},
		"events-since":             {routes{"GET /v1/events/kept": emitting(repeatedEvents()...)}, "", "events --since 2h --until 1h"},
		"top":                      {routes{"GET /v1/status": labNode()}, "", "top -b -n 1"},
		"top-tenants":              {routes{"GET /v1/status": labNode()}, "", "top -b -n 1 --by tenant"},
		"top-leases":               {routes{"GET /v1/status": labNode()}, "", "top -b -n 1 --by lease"},
		"top-empty":                {routes{"GET /v1/status": emptyNode()}, "", "top -b -n 1"},
		"top-no-terminal":          {nil, "", "top"},
		"top-by-what":              {nil, "", "top --by user"},
		"top-json":                 {nil, "", "top --json"},
		"apply-at-once":            {routes{"PUT /v1/spec": api.ApplyResult{Generation: 8, Changed: true, Plan: api.Plan{Empty: true}}}, "version: v1\n", "apply -f -"},
		"apply-infeasible":         {routes{"PUT /v1/spec": infeasible}, "version: v1\n", "apply -f -"},
		"config-reload":            {reloading(operation("done", nil)), "", "config reload"},
		"apply-stale":              {routes{"PUT /v1/spec": stale}, "version: v1\n", "apply -f -"},
		"apply-mistakes":           {routes{"PUT /v1/spec": spoilt}, "version: v1\n", "apply -f -"},
		"apply-one-mistake":        {routes{"PUT /v1/spec": one}, "version: v1\n", "apply -f -"},
		"apply-too-many-mistakes":  {routes{"PUT /v1/spec": hundred}, "version: v1\n", "apply -f -"},
		"unmanage":                 {releasing(operation("done", nil)), "", "unmanage --all --force"},
		"unmanage-no-wait":         {releasing(operation("done", nil)), "", "unmanage --no-wait"},
		"unmanage-check":           {routes{"POST /v1/unmanage": api.ApplyResult{Checked: true, Plan: labPlan()}, "GET /v1/status": labNode()}, "", "unmanage --check"},
		"unmanage-check-unread":    {routes{"POST /v1/unmanage": api.ApplyResult{Checked: true, Plan: api.Plan{Empty: true, Unreachable: []api.Unreachable{{Reason: "cannot read whether logins have access to managed GPUs: permission denied", Hint: "'gpushare doctor' has more"}}}}}, "", "unmanage --check"},
		"unmanage-check-nothing":   {routes{"POST /v1/unmanage": api.ApplyResult{Checked: true, Plan: api.Plan{Empty: true}}}, "", "unmanage --check"},
		"unmanage-nothing":         {routes{"POST /v1/unmanage": api.ApplyResult{Plan: api.Plan{Empty: true}}}, "", "unmanage"},
		"unmanage-in-use":          {routes{"POST /v1/unmanage": &api.Error{Kind: api.KindInUse, Message: "the node is in use by vision-k8qg of bob", Hint: "nothing was changed; --force stops them, or wait until they end"}}, "", "unmanage"},
		"status-unmanaged":         {routes{"GET /v1/status": released}, "", "status"},
		"retry": {routes{
			"POST /v1/gpus/10/retry": retried[0], "GET /v1/status": labNode(),
			"GET /v1/operations/op-13": retried[2],
		}, "", "gpu retry 10"},
		"tenant-freeze": {routes{"POST /v1/tenants/vision/freeze": frozenTenant()}, "", "tenant freeze vision"},
		"tenant-thaw":   {routes{"POST /v1/tenants/vision/thaw": api.TenantFreezeResult{Tenant: "vision", Leases: []api.LeaseFreeze{{Lease: "vision-4"}, {Lease: "vision-5", Frozen: true, Reason: "it is frozen for GPU memory"}}}}, "", "tenant thaw vision"},
		"doctor":        {routes{"GET /v1/doctor": labDoctor()}, "", "doctor"},
		"doctor-warn":   {routes{"GET /v1/doctor": api.Doctor{Checks: labDoctor().Checks[:2]}}, "", "doctor"},
		"doctor-well":   {routes{"GET /v1/doctor": api.Doctor{Checks: labDoctor().Checks[:1]}}, "", "doctor"},
		"events":        {routes{"GET /v1/events": emitting(labEvents()...)}, "", "events"},
		"audit":         {routes{"GET /v1/audit": emitting(labAudit()...)}, "", "audit"},
		"audit-verify":  {routes{"GET /v1/audit/verify": api.AuditVerification{SchemaVersion: 1, Entries: 40, First: 7, Last: 46, SHA256: strings.Repeat("5f", 32), Incomplete: 1, Lost: 2, Anchored: true, AnchoredSince: 12}}, "", "audit --verify"},
		"audit-broken":  {routes{"GET /v1/audit/verify": api.AuditVerification{SchemaVersion: 1, Entries: 3, First: 7, Last: 9, SHA256: strings.Repeat("5f", 32), Broken: &api.BrokenLine{File: "audit-000002.log", Line: 4, Message: "it has number 12 and follows number 9: the lines between them were removed"}}}, "", "audit --verify"},
		"audit-missing": {routes{"GET /v1/audit/verify": auditMissing()}, "", "audit --verify --anchor 30:" + strings.Repeat("5f", 32)},
		"audit-anchor":  {routes{}, "", "audit --verify --anchor 30"},
		"audit-no-dir":  {routes{}, "", "audit --verify --state-dir /nonexistent/gpushare"},
		"env":           {routes{"GET /v1/env": api.Environment{Environment: map[string]string{"CUDA_VISIBLE_DEVICES": mig4, "ODD": "it's $HOME"}, Unset: []string{"CUDA_MPS_PIPE_DIRECTORY"}}}, "", "env"},
		"env-cdi":       {routes{"GET /v1/status": labNode(), "GET /v1": api.Info{Caller: api.Caller{Role: "admin"}}}, "", "env --cdi"},
		"env-cdi-no":    {routes{"GET /v1/status": labNode(), "GET /v1": api.Info{Caller: api.Caller{Role: "admin"}}}, "", "env --cdi -t speech"},
		"env-cdi-mps":   {routes{"GET /v1/status": labNode(), "GET /v1": api.Info{Caller: api.Caller{Role: "admin"}}}, "", "env --cdi -t speech --grant serve"},
		"env-cdi-user":  {routes{"GET /v1": api.Info{Caller: api.Caller{Role: "member"}}}, "", "env --cdi -t vision --grant dev"},
		"env-podman":    {routes{"GET /v1/env": api.Environment{Podman: []string{"--cgroups=disabled", "--device=/dev/nvidiactl:/dev/nvidiactl:rw"}}}, "", "env --podman"},
		"explain":       {routes{"GET /v1/explain": explained()}, "", "explain vision-3kq6"},
		"get":           {routes{"GET /v1/spec": api.SpecDocument{Generation: 7, YAML: "version: v1\nbase: 7\n"}}, "", "get"},
		"version":       {routes{"GET /v1": api.Info{API: "v1", Version: "other", Driver: "580.95.05"}}, "", "version"},
		"reload":        {routes{"POST /v1/reload": struct{}{}}, "", "config reload"},
		"validate":      {nil, "version: v1\ngpus:\n- select: {all: true}\n  mode: exclusive\n", "spec validate -"},
		"validate-oversubscribed": {nil, `version: v1
gpus:
- select: {index: 0}
  mode: timeslice
tenants:
- name: red
  grants: [{name: g, timeslice: {share: 90%}}]
- name: blue
  grants: [{name: g, timeslice: {share: 70%}}]
`, "spec validate -"},
		"validate-mistakes": {nil, `version: v1
gpus:
- select: {all: true}
  mode: migg
tenants:
- name: Red One
  gpu: [{name: a, timeslice: {share: 40}}]
`, "spec validate -"},
		"help": {nil, "", "--help"},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, c.routes, c.stdin, strings.Fields(c.args)...)
			if r.out+r.err != r.all && r.err+r.out != r.all {
				t.Logf("the streams take turns:\n%s", r.all)
			}
			got := fmt.Sprintf("$ gpushare %s\n%s", c.args, r.out)
			if r.err != "" {
				got += "── standard error\n" + r.err
			}
			got += fmt.Sprintf("── exit code %d\n", r.code)
			if strings.Contains(got, "\x1b") {
				t.Error("an escape sequence gets through where there is no terminal")
			}
			for i, line := range strings.Split(got, "\n") {
				if strings.TrimRight(line, " ") != line {
					t.Errorf("line %d ends in spaces: %q", i+1, line)
				}
			}
			compare(t, name, got)
		})
	}
}

func compare(t *testing.T, name, got string) {
	t.Helper()
	golden.File(t, filepath.Join("testdata", name+".txt"), got)
}

// No golden file outlives its test.
func TestNoGoldenIsLeftOver(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	var source []byte
	for _, f := range []string{"apply_test.go", "cordon_test.go", "golden_test.go", "hosts_test.go", "maintenance_test.go", "run_test.go", "status_test.go"} {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, b...)
	}
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".txt"); !strings.Contains(string(source), `"`+name+`"`) {
			t.Errorf("%s belongs to no test", f)
		}
	}
}

// Warnings are read before the plan that they are about, wherever both streams end up.
func TestWarningsComeFirst(t *testing.T) {
	r := run(t, applying(operation("done", nil)), "version: v1\n", "apply", "-f", "-")
	warning, plan := strings.Index(r.all, "warning: "), strings.Index(r.all, "5 steps")
	if warning < 0 || plan < 0 || warning > plan {
		t.Errorf("the warning is at %d, the plan at %d of:\n%s", warning, plan, r.all)
	}
	if strings.Contains(r.out, "warning") {
		t.Error("a warning is on standard output")
	}
}

func TestMain(m *testing.M) {
	cli.ForgetSlurm()
	time.Local = time.UTC // Times are shown in the reader's zone.
	cli.SetNow(func() time.Time { return noon })
	if code, set := becomeEntering(); set {
		os.Exit(code)
	}
	if code, set := becomePlotter(); set {
		os.Exit(code)
	}
	if code, set := becomeGpushare(); set {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// notHere is the answer to the stop of a lease that there is not.
func notHere(id string) *api.Error {
	return &api.Error{
		Kind:    api.KindNotFound,
		Message: fmt.Sprintf("there is no lease %q that you may stop", id),
		Hint:    "see 'gpushare lease list'",
	}
}
