//! Completion scripts and the manual page, made from the command line's own definition.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::exit::{Exit, Outcome};

/// The completion script of a shell.
pub fn completions(shell: Shell, out: &mut Vec<u8>) -> Exit {
    clap_complete::generate(shell, &mut Cli::command(), "outbox-relay", out);
    Exit::Done
}

/// The manual page in roff, the commands below the main part.
pub fn man(out: &mut Vec<u8>) -> Outcome<Exit> {
    let command = Cli::command();
    clap_mangen::Man::new(command.clone()).render(out)?;
    pages(&command, "outbox-relay", out)
}

fn pages(command: &clap::Command, path: &str, out: &mut Vec<u8>) -> Outcome<Exit> {
    for sub in command.get_subcommands() {
        let path = format!("{path} {}", sub.get_name());
        let page = clap_mangen::Man::new(sub.clone().bin_name(path.clone()));
        out.extend_from_slice(format!(".SH \"{}\"\n", path.to_uppercase()).as_bytes());
        page.render_synopsis_section(out)?;
        page.render_description_section(out)?;
        page.render_options_section(out)?;
        pages(sub, &path, out)?;
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_and_manual_know_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut out = Vec::new();
            completions(shell, &mut out);
            let text = String::from_utf8(out).unwrap();
            assert!(text.contains("migrate") && text.contains("parked"), "{shell}");
        }
        let mut out = Vec::new();
        man(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains(".TH outbox-relay") && text.contains("drain"), "{text}");
    }
}
