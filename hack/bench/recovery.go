package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

func agentVerifier() verifier { return verifier{"agent", harness.User} }

// workerVerifier is the controller, which releases a node by the verdict of a worker.
func workerVerifier() verifier { return verifier{"worker", harness.ControllerUser} }

// recoveryNodes are the nodes whose network is broken. The real node has the name servers and the controller, and works.
func recoveryNodes() []string {
	return []string{"recovery1", "recovery2", "recovery3", "recovery4"}
}

// recovery measures how long after its network works a node is released.
func (b *bench) recovery(ctx context.Context) (err error) {
	nodes := recoveryNodes()
	b.step("recovery: %d nodes with a real kubelet", len(nodes))
	defer func() { err = errors.Join(err, b.DeleteNodes(context.WithoutCancel(ctx), nodes...)) }()
	if err := b.AddNodes(ctx, nodes...); err != nil {
		return err
	}
	if err := b.outages(ctx, agentVerifier(), []string{dns, services, routes, proxy}); err != nil {
		return err
	}
	return b.outages(ctx, workerVerifier(), []string{dns}, controllerModeValues()...)
}

// recoveryBudget limits the time from the end of an outage to the release, compared with the outage: 1.5 s (in controller mode 5 s) and
// a fortieth of it.
func recoveryBudget(by verifier, seconds int) float64 {
	base := map[string]float64{"agent": 1.5, "worker": 5}[by.component]
	return base/float64(seconds) + 1.0/40
}

// outages deploys the chart with values, and measures an outage of each kind and length, on all nodes side by side, the longest first.
func (b *bench) outages(ctx context.Context, by verifier, faults []string, values ...string) (err error) {
	defer func() { err = errors.Join(err, b.Undeploy(context.WithoutCancel(ctx), values...)) }()
	if err := b.Deploy(ctx, values...); err != nil {
		return err
	}
	b.step("recovery: a pod of the %s waits for %v", by.component, faults)
	lengths := outageLengths()
	waiting := make(chan *outage, len(lengths)*len(faults))
	all := make(map[int][]*outage)
	for _, seconds := range lengths {
		for _, fault := range faults {
			o := &outage{fault: fault, planned: time.Duration(seconds) * time.Second}
			all[seconds] = append(all[seconds], o)
			waiting <- o
		}
	}
	close(waiting)
	var done sync.WaitGroup
	for _, name := range recoveryNodes() {
		done.Go(func() {
			for o := range waiting {
				if ctx.Err() == nil {
					o.err = b.measure(ctx, by, name, o)
					b.step("%s: %s, %.1f s: released after %.2f s", name, o.fault, o.lasted.Seconds(), o.released.Seconds())
				}
			}
		})
	}
	done.Wait()
	for _, seconds := range lengths {
		b.reportOutages(by, seconds, all[seconds])
	}
	return ctx.Err()
}

// reportOutages adds a row for the outages of the same length: the worst of them counts.
func (b *bench) reportOutages(by verifier, seconds int, all []*outage) {
	name := fmt.Sprintf("outage of %d s, %s: released after, compared with the outage", seconds, by.component)
	for _, o := range all {
		if o.err != nil {
			b.add(row{name, fmt.Sprintf("%s: %v", o.fault, o.err), "", "FAIL"})
			return
		}
	}
	worst := slices.MaxFunc(all, func(a, b *outage) int { return cmp.Compare(a.released, b.released) })
	b.figure(fmt.Sprintf("outage of %d s, %s: released after, worst", seconds, by.component), "%.2f s (%s)", worst.released.Seconds(), worst.fault)
	b.budget(name, worst.released.Seconds()/float64(seconds), recoveryBudget(by, seconds), "%.3f times")
}

// outageLengths are in seconds, the longest first.
func outageLengths() []int { return []int{75, 20, 3} }
