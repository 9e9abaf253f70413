
# Names come from the cluster's controllers, which are asked for a moment only.
_skein_names() {
    local cur=${COMP_WORDS[COMP_CWORD]} named=
    case "$COMP_CWORD ${COMP_WORDS[1]} ${COMP_WORDS[2]}" in
        "3 host show" | "3 host drain" | "3 host resume" | "3 host remove") named=hosts ;;
        "3 operation show" | "3 operation watch" | "3 operation cancel") named=operations ;;
        "3 rule show" | "3 rule remove") named=rules ;;
        "3 rule explain") named=vms ;;
        "3 token remove") named=tokens ;;
        "3 migration switch" | "3 migration cancel" | "3 migration watch" | "3 migration show") named=migrations ;;
        "2 migrate "* | "3 vm start" | "3 vm stop" | "3 vm delete" | "3 vm show") named=vms ;;
    esac
    [ "${COMP_WORDS[1]} ${COMP_WORDS[2]}" = "host group" ] && [ "$COMP_CWORD" -gt 3 ] && named=hosts
    case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}" in
        "migrate --to" | "vm --on" | "net --to" | "cluster --host") named=hosts ;;
        "cluster --group") named=groups ;;
        "property host") named=hosts ;;
        "property vm") named=vms ;;
    esac
    if [ -n "$named" ] && [ "${cur#-}" = "$cur" ]; then
        COMPREPLY=($(compgen -W "$(skein names "$named" 2>/dev/null)" -- "$cur"))
    else
        _skein "$@"
    fi
}
complete -F _skein_names -o bashdefault -o default skein
