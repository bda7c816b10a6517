# shellcheck shell=bash
# One cgroup for the cluster in each hierarchy, with one for each node below it. Only these outlive the namespaces.

CGROUPS=/sys/fs/cgroup

# cgroup_roots prints the root of each hierarchy that a kubelet uses: one on cgroup v2, one for each controller on v1.
cgroup_roots() {
	local dir
	if [[ -f $CGROUPS/cgroup.controllers ]]; then
		say "$CGROUPS"
		return
	fi
	for dir in "$CGROUPS"/*/; do
		# cpu and cpuacct are often two names of one hierarchy; unified is the empty v2 tree of a hybrid setup.
		if [[ ! -L ${dir%/} && ! -f ${dir}cgroup.controllers && -f ${dir}cgroup.procs ]]; then say "${dir%/}"; fi
	done
}

# cgroup_hierarchies prints the root of every hierarchy: on a hybrid setup runc also creates groups in the v2 tree.
cgroup_hierarchies() { awk -v top="$CGROUPS" '($3 == "cgroup" || $3 == "cgroup2") && index($2, top) == 1 {print $2}' /proc/self/mounts | sort -u; }

# cgroup_make PATH: creates the path in every hierarchy and enables the controllers.
cgroup_make() {
	local root part dir controller file
	for root in $(cgroup_roots); do
		dir=$root
		for part in ${1//\// }; do
			if [[ -f $dir/cgroup.subtree_control ]]; then
				if [[ $dir == "$root" && ! -e $RUN_DIR/cgroup-before ]]; then cat "$dir/cgroup.subtree_control" >"$RUN_DIR/cgroup-before"; fi
				for controller in $(<"$dir/cgroup.controllers"); do
					# One at a time: one that cannot be enabled must not prevent the others.
					printf '+%s' "$controller" 2>/dev/null >"$dir/cgroup.subtree_control" || true
				done
			fi
			mkdir -p "$dir/$part"
			# A new v1 cpuset is empty: no process can run in it.
			for file in cpuset.cpus cpuset.mems; do
				if [[ ! -f $CGROUPS/cgroup.controllers && -f $dir/$part/$file && -z $(<"$dir/$part/$file") ]]; then
					cat "$dir/$file" >"$dir/$part/$file"
				fi
			done
			dir=$dir/$part
		done
	done
}

# cgroup_restore disables the controllers that cgroup_make enabled at the root of cgroup v2, except those that another cgroup uses.
cgroup_restore() {
	local controller
	if [[ ! -f $RUN_DIR/cgroup-before || ! -f $CGROUPS/cgroup.subtree_control ]]; then return 0; fi
	for controller in $(<"$CGROUPS/cgroup.subtree_control"); do
		if [[ " $(<"$RUN_DIR/cgroup-before") " != *" $controller "* ]]; then
			printf -- '-%s' "$controller" 2>/dev/null >"$CGROUPS/cgroup.subtree_control" || true
		fi
	done
}

# cgroup_remove PATH: removes the tree, deepest first. The kernel may need a moment after the last process has ended.
cgroup_remove() {
	local root try
	for try in 1 2 3 4 5 6 7 8 9 10; do
		for root in $(cgroup_hierarchies); do
			if [[ -d $root/$1 ]]; then find "$root/$1" -depth -type d -exec rmdir {} + 2>/dev/null || true; fi
		done
		if [[ -z $(cgroup_left "$1") ]]; then return 0; fi
		sleep "0.$try"
	done
	return 1
}

cgroup_left() {
	local root
	for root in $(cgroup_hierarchies); do
		if [[ -d $root/$1 ]]; then say "$root/$1"; fi
	done
}

# cgroup_trial prints why no cgroup can be created, or nothing.
cgroup_trial() {
	local root name=knr-trial-$$ controller found
	if [[ -z $(cgroup_roots) ]]; then
		say "no cgroups are mounted under $CGROUPS"
		return
	fi
	for root in $(cgroup_roots); do
		if ! mkdir "$root/$name" 2>/dev/null; then
			say "no cgroup can be created in $root; a container needs --privileged"
			return
		fi
		rmdir "$root/$name"
	done
	for controller in cpu cpuset memory pids; do
		if [[ -f $CGROUPS/cgroup.controllers ]]; then found=$(<"$CGROUPS/cgroup.controllers"); else found=$(cd "$CGROUPS" && printf '%s ' *); fi
		if [[ " ${found//,/ } " != *" $controller "* ]]; then say "kubelet needs the cgroup controller $controller, which is not under $CGROUPS"; fi
	done
	# A container's cgroup that contains processes: controllers cannot be enabled for its children.
	if [[ -f $CGROUPS/cgroup.type && -n $(<"$CGROUPS/cgroup.procs") && " $(<"$CGROUPS/cgroup.subtree_control") " != *" memory "* ]]; then
		say "the root of this container's cgroup contains processes; start the container with --cgroupns=host, or move them into a child of $CGROUPS"
	fi
}
