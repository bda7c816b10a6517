package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	randomOutages = 20 // of the name servers
	longestRandom = time.Minute
	longOutage    = 10 * time.Minute
)

// recoveryNodes are the nodes whose network is broken. The real node has the name servers and the controller, and works.
func recoveryNodes() []string {
	return []string{"recovery1", "recovery2", "recovery3", "recovery4"}
}

// recovery measures how long after its network works again a node is released.
func (b *bench) recovery(ctx context.Context) (err error) {
	nodes := recoveryNodes()
	b.step("recovery: %d nodes with a real kubelet", len(nodes))
	defer func() { err = errors.Join(err, b.DeleteNodes(context.WithoutCancel(ctx), nodes...)) }()
	if err := b.AddNodes(ctx, nodes...); err != nil {
		return err
	}
	agents := agentOutages()
	if err := b.outages(ctx, verifier{"agent", harness.User}, nodes, agents); err != nil {
		return err
	}
	b.reportOutages("", agents, agentRecoveryBudget)
	b.reportLong(agents)
	workers := workerOutages()
	values := append(harness.ControllerValues(), "deploymentMode=controller", "controller.replicas=1")
	if err := b.outages(ctx, verifier{"worker", harness.ControllerUser}, nodes, workers, values...); err != nil {
		return err
	}
	b.reportOutages("controller mode, ", workers, workerRecoveryBudget)
	return nil
}

// agentOutages are the outages that agents wait for.
func agentOutages() (all []*outage) {
	for _, fault := range []string{dnsDropped, servicesDropped} {
		all = append(all, &outage{fault: fault, planned: longOutage, counted: true})
	}
	for range randomOutages {
		all = append(all, &outage{fault: dnsDropped, planned: time.Duration(rand.Int64N(int64(longestRandom)))})
	}
	for _, fault := range []string{servicesDropped, podsDropped, proxyLate} {
		all = append(all, outagesOf(fault, 3, 20, 75)...)
	}
	return all
}

// workerOutages are the outages that workers wait for.
func workerOutages() []*outage { return outagesOf(dnsDropped, 3, 20, 75, 200) }

func outagesOf(fault string, seconds ...int) (all []*outage) {
	for _, s := range seconds {
		all = append(all, &outage{fault: fault, planned: time.Duration(s) * time.Second})
	}
	return all
}

// outages deploys the chart with values, and measures all outages, on all nodes side by side, the longest first.
func (b *bench) outages(ctx context.Context, by verifier, nodes []string, all []*outage, values ...string) (err error) {
	defer func() { err = errors.Join(err, b.Undeploy(context.WithoutCancel(ctx), values...)) }()
	if err := b.Deploy(ctx, values...); err != nil {
		return err
	}
	if by.component == "worker" {
		if err := b.AwaitController(ctx); err != nil {
			return err
		}
	}
	joined, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, name := range nodes { // with the startup taint
		if err := b.settled(joined, by, name); err != nil {
			return err
		}
	}
	b.step("recovery: %d outages that a pod of the %s waits for", len(all), by.component)
	slices.SortStableFunc(all, func(a, b *outage) int { return cmp.Compare(b.planned, a.planned) })
	waiting := make(chan *outage, len(all))
	for _, o := range all {
		waiting <- o
	}
	close(waiting)
	var done sync.WaitGroup
	for _, name := range nodes {
		done.Go(func() {
			for o := range waiting {
				if ctx.Err() != nil {
					return
				}
				o.err = b.measure(ctx, by, name, o)
				b.step("%s: %s", name, o)
			}
		})
	}
	done.Wait()
	return ctx.Err()
}

func (o *outage) String() string {
	if o.err != nil {
		return fmt.Sprintf("%s, %.1f s: %v", o.fault, o.planned.Seconds(), o.err)
	}
	return fmt.Sprintf("%s, %.1f s: released after %.2f s", o.fault, o.lasted.Seconds(), o.released.Seconds())
}

// reportOutages adds a row for each outage, by fault and length.
func (b *bench) reportOutages(prefix string, all []*outage, budget float64) {
	slices.SortStableFunc(all, func(a, b *outage) int {
		return cmp.Or(cmp.Compare(a.fault, b.fault), cmp.Compare(a.lasted, b.lasted))
	})
	for _, o := range all {
		if o.err != nil {
			b.add(row{prefix + o.String(), "", "", "FAIL"})
			continue
		}
		name := fmt.Sprintf("%s%s, %.1f s: released after", prefix, o.fault, o.lasted.Seconds())
		b.budget(name, o.released.Seconds(), recoveryLimit(budget, o.lasted), "%.2f s")
	}
}

// recoveryLimit is how many seconds after an outage the node is to be released: a fortieth of the outage more than the budget.
func recoveryLimit(budget float64, outage time.Duration) float64 { return budget + outage.Seconds()/40 }

// reportLong adds what an agent sends during the long outages, and what the API server gets after an outage of the name servers
// from 5,000 agents that recover together, by what one of them has requested.
func (b *bench) reportLong(all []*outage) {
	for _, o := range all {
		if o.err != nil || !o.counted {
			continue
		}
		name := fmt.Sprintf("%s, %.0f s: ", o.fault, o.lasted.Seconds())
		b.budget(name+"packets of an agent a second", o.packets.perSecond, packetsBudget, "%.2f")
		b.figure(name+"these are", "%d DNS queries over UDP, %d others", o.packets.dns, o.packets.other)
		if o.fault == dnsDropped { // it reaches the API server
			b.budget(name+"API requests of an agent (budget: calculated)", float64(o.requests), outageRequestsBudget, "%.0f")
		}
	}
	for _, o := range lastTwo(all) {
		b.figure(fmt.Sprintf("busiest second of 5,000 agents after %.0f s", o.lasted.Seconds()), "%.0f API requests, %d of each",
			busiestSecond(o.recovery, o.lasted), o.recovery)
	}
}

// lastTwo are the two longest outages of the name servers that were measured: one of 10 minutes and one of a minute.
func lastTwo(all []*outage) []*outage {
	all = slices.DeleteFunc(slices.Clone(all), func(o *outage) bool { return o.err != nil || o.fault != dnsDropped })
	slices.SortFunc(all, func(a, b *outage) int { return cmp.Compare(b.lasted, a.lasted) })
	return all[:min(2, len(all))]
}

// busiestSecond is how many of their requests 5,000 agents send in one second after an outage. Each looks for a sign every
// sixtieth of the outage, at least every 15 s and at most once a second; their jitter has spread them over that time.
func busiestSecond(requests int, outage time.Duration) float64 {
	spread := min(max(outage/60, time.Second), 15*time.Second)
	return fleetSize * float64(requests) / spread.Seconds()
}
