#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "client/cli/exit_codes.h"
#include "client/cli/verbs.h"

namespace ckptd::cli {
namespace {

struct VerbWords {
  std::string name;
  std::string description;
  std::vector<std::string> options;  // with their dashes
  bool takes_name = false;           // the first argument is a checkpoint's name
};

std::vector<std::string> OptionsOf(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) out.push_back("--" + name);
  }
  return out;
}

std::vector<VerbWords> VerbsOf(const CLI::App& app) {
  std::vector<VerbWords> out;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    VerbWords words;
    words.name = verb->get_name();
    words.description = verb->get_description();
    words.options = OptionsOf(*verb);
    words.takes_name = verb->get_option_no_throw("NAME") != nullptr ||
                       verb->get_option_no_throw("TARGET") != nullptr;
    out.push_back(std::move(words));
  }
  return out;
}

std::vector<std::string> NamesOf(const std::vector<VerbWords>& verbs) {
  std::vector<std::string> out;
  for (const VerbWords& verb : verbs) out.push_back(verb.name);
  return out;
}

// Descriptions are put between single quotes.
std::string Quoted(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), '\''), text.end());
  return fmt::format("'{}'", text);
}

std::string Bash(const std::vector<VerbWords>& verbs, const std::vector<std::string>& global) {
  std::string cases;
  for (const VerbWords& verb : verbs) {
    cases += fmt::format("    {}) words=\"{}\"; named={} ;;\n", verb.name,
                         fmt::join(verb.options, " "), verb.takes_name ? 1 : 0);
  }
  return fmt::format(R"sh(# bash completion of ckptctl: source it, or save it as
# ~/.local/share/bash-completion/completions/ckptctl
_ckptctl() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" verb="" words="" named=0 word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in {}) verb="$word"; break ;; esac
  done
  case "$verb" in
    "") words="{}" ;;
{}  esac
  if [[ "$current" == -* || -z "$verb" ]]; then
    COMPREPLY=($(compgen -W "$words {}" -- "$current"))
  elif (( named )); then
    COMPREPLY=($(compgen -W "$(ckptctl list --quiet 2>/dev/null)" -- "$current"))
  fi
}}
complete -o default -F _ckptctl ckptctl
)sh",
                     fmt::join(NamesOf(verbs), "|"), fmt::join(NamesOf(verbs), " "), cases,
                     fmt::join(global, " "));
}

std::string Zsh(const std::vector<VerbWords>& verbs, const std::vector<std::string>& global) {
  std::string described;
  std::string cases;
  for (const VerbWords& verb : verbs) {
    std::string text = verb.description;
    std::replace(text.begin(), text.end(), ':', ' ');
    described += fmt::format("    {}\n", Quoted(verb.name + ":" + text));
    cases += fmt::format("    {}) options=({}); named={} ;;\n", verb.name,
                         fmt::join(verb.options, " "), verb.takes_name ? 1 : 0);
  }
  return fmt::format(R"sh(#compdef ckptctl
# zsh completion of ckptctl: save it as _ckptctl in a folder of $fpath.
_ckptctl() {{
  local verb="" word named=0
  local -a verbs options
  verbs=(
{}  )
  for word in ${{words[2,CURRENT-1]}}; do
    if (( ${{verbs[(I)${{word}}:*]}} )); then verb=$word; break; fi
  done
  case $verb in
{}  esac
  options+=({})
  if [[ $PREFIX == -* ]]; then
    compadd -- $options
  elif [[ -z $verb ]]; then
    _describe verb verbs
  elif (( named )); then
    compadd -- ${{(f)"$(ckptctl list --quiet 2>/dev/null)"}}
    _files
  else
    _files
  fi
}}
_ckptctl "$@"
)sh",
                     described, cases, fmt::join(global, " "));
}

std::string Fish(const std::vector<VerbWords>& verbs, const std::vector<std::string>& global) {
  std::string out =
      "# fish completion of ckptctl: save it as ~/.config/fish/completions/ckptctl.fish\n";
  const std::string names = fmt::format("{}", fmt::join(NamesOf(verbs), " "));
  for (const std::string& option : global) {
    out += fmt::format("complete -c ckptctl -l {}\n", option.substr(2));
  }
  for (const VerbWords& verb : verbs) {
    out += fmt::format(
        "complete -c ckptctl -f -n 'not __fish_seen_subcommand_from {}' -a {} -d {}\n", names,
        verb.name, Quoted(verb.description));
    for (const std::string& option : verb.options) {
      out += fmt::format("complete -c ckptctl -n '__fish_seen_subcommand_from {}' -l {}\n",
                         verb.name, option.substr(2));
    }
    if (verb.takes_name) {
      out += fmt::format("complete -c ckptctl -n '__fish_seen_subcommand_from {}' "
                         "-a '(ckptctl list --quiet 2>/dev/null)'\n",
                         verb.name);
    }
  }
  return out;
}

}  // namespace

std::string CompletionScript(const CLI::App& app, std::string_view shell) {
  const std::vector<VerbWords> verbs = VerbsOf(app);
  const std::vector<std::string> global = OptionsOf(app);
  if (shell == "zsh") return Zsh(verbs, global);
  return shell == "fish" ? Fish(verbs, global) : Bash(verbs, global);
}

void AddCompletion(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(app, "completion", "Print a completion script for a shell",
                           "Examples:\n"
                           "  source <(ckptctl completion bash)\n"
                           "  ckptctl completion fish > ~/.config/fish/completions/ckptctl.fish\n");
  auto shell = std::make_shared<std::string>();
  verb->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  verb->callback([shell, &app, &context] {
    context.action = [shell, &app, &context]() -> absl::StatusOr<int> {
      context.io.out << CompletionScript(app, *shell);
      return kExitFine;
    };
  });
}

}  // namespace ckptd::cli
