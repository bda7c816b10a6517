package breaker

// Table is every rule that can keep an action from a node, in the order in which they are asked. C is what they look at.
type Table[C any] []Row[C]

// Row is one rule. A rule may have two rows: one for every node, and a stricter one for a candidate.
type Row[C any] struct {
	Rule Rule
	All  bool // it is about every node: it is asked once a decision, and is a metric
	// Holds returns the rule's numbers, "" where it does not hold.
	Holds func(C) string
}

// Breakers returns the rules for every node, in their order.
func (t Table[C]) Breakers() (rules []Rule) {
	for _, row := range t {
		if row.All {
			rules = append(rules, row.Rule)
		}
	}
	return rules
}

// Holding returns the rules for every node that hold now, with their numbers.
func (t Table[C]) Holding(c C) map[Rule]string {
	found := make(map[Rule]string)
	for _, row := range t {
		if !row.All {
			continue
		}
		if text := row.Holds(c); text != "" {
			found[row.Rule] = text
		}
	}
	return found
}

// First returns the first rule that holds for a node, with its numbers, or "". holding are the rules for every node that hold.
func (t Table[C]) First(c C, holding map[Rule]string) (Rule, string) {
	for _, row := range t {
		text := holding[row.Rule]
		if !row.All {
			text = row.Holds(c)
		}
		if text != "" {
			return row.Rule, text
		}
	}
	return "", ""
}
