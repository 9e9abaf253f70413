
# Names come from the cluster's controllers, which are asked for a moment only.
complete -c skein -n "__fish_seen_subcommand_from host; and __fish_seen_subcommand_from show drain resume remove" -f -a "(skein names hosts 2>/dev/null)"
complete -c skein -n "__fish_seen_subcommand_from operation; and __fish_seen_subcommand_from show watch cancel" -f -a "(skein names operations 2>/dev/null)"
complete -c skein -n "__fish_seen_subcommand_from vm; and __fish_seen_subcommand_from show stop delete" -f -a "(skein names vms 2>/dev/null)"
complete -c skein -n "__fish_seen_subcommand_from vm; and __fish_seen_subcommand_from start" -a "(skein names vms 2>/dev/null)"
complete -c skein -n "__fish_seen_subcommand_from vm; and __fish_seen_subcommand_from start" -l on -x -a "(skein names hosts 2>/dev/null)"
complete -c skein -n "__fish_seen_subcommand_from migrate" -f -a "(skein names vms 2>/dev/null)"
complete -c skein -n "__fish_seen_subcommand_from migrate" -l to -x -a "(skein names hosts 2>/dev/null)"
complete -c skein -n "__fish_seen_subcommand_from rule; and __fish_seen_subcommand_from show remove" -f -a "(skein names rules 2>/dev/null)"
complete -c skein -n "__fish_seen_subcommand_from rule; and __fish_seen_subcommand_from explain" -f -a "(skein names vms 2>/dev/null)"
